//! Contexts: for each name a token, a controlplane's address for QUIC and
//! whom to trust there, and where the Python SDK finds the same controlplane.
//!
//! They are kept in two files. `~/.levers9/config` (or `CONFIG_PATH`) is the
//! SDK's, see [`crate::config`]; the addresses are in `contexts.toml` beside
//! it. The SDK changes its file without knowing of the other, so an address
//! counts only for a section that still names the controlplane the address was
//! stored with: a token never goes to another controlplane.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use levers9_transport::Address;
use serde::{Deserialize, Serialize};

use crate::config::{Config, DEFAULT, Section};
use crate::env::{self, Env};
use crate::error::Error;
use crate::files::{self, Lock};

/// One context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// What is in the SDK's file.
    pub section: Section,
    /// Where to dial and whom to trust there, when that is known.
    pub address: Option<Address>,
}

/// What `contexts.toml` holds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addresses {
    #[serde(default)]
    contexts: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// `levers9://host:port#sha256:…`
    #[serde(with = "address_text")]
    address: Address,
    /// The host and port of the gRPC side it belongs to.
    controlplane: String,
}

/// All contexts, as the two files have them.
#[derive(Debug, Clone, Default)]
pub struct Contexts {
    config: Config,
    addresses: Addresses,
}

impl Contexts {
    /// A context; its address only where it belongs to the same controlplane.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Context> {
        let section = self.config.get(name)?.clone();
        let controlplane = section.controlplane();
        let own = self.addresses.contexts.get(name).filter(|entry| entry.controlplane == controlplane);
        // The SDK may have selected another context: its address is under that one's name.
        let entry = own.or_else(|| self.addresses.contexts.values().find(|e| e.controlplane == controlplane));
        Some(Context { address: entry.map(|e| e.address.clone()), section })
    }

    /// The names there are.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.config.names()
    }

    /// Whether a context counts when none is named: the default one holds a token.
    #[must_use]
    pub fn has_default(&self) -> bool {
        self.config.get(DEFAULT).is_some_and(|section| !section.token.is_empty())
    }

    /// Whether a context is the one that counts when none is named.
    #[must_use]
    pub fn is_default(&self, name: &str) -> bool {
        name == DEFAULT || (self.has_default() && self.get(name) == self.get(DEFAULT))
    }

    /// Adds or replaces a context.
    pub fn put(&mut self, name: &str, context: &Context) {
        match &context.address {
            Some(address) => {
                let entry = Entry { address: address.clone(), controlplane: context.section.controlplane() };
                self.addresses.contexts.insert(name.to_owned(), entry);
            }
            None => drop(self.addresses.contexts.remove(name)),
        }
        self.config.put(name, context.section.clone());
    }

    /// Makes a context the default one, by a copy as the SDK does it. Whether
    /// there is such a context.
    pub fn select(&mut self, name: &str) -> bool {
        let Some(context) = self.get(name) else { return false };
        self.put(DEFAULT, &context);
        true
    }

    /// Forgets a context. Whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.addresses.contexts.remove(name);
        self.config.remove(name)
    }
}

/// The two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    config: PathBuf,
    addresses: PathBuf,
    /// Whether the folder is levers9's own, to be kept private.
    own_folder: bool,
}

impl Store {
    /// The files in force for an environment.
    ///
    /// # Errors
    /// When neither `CONFIG_PATH` nor a home folder is known.
    pub fn of_env(env: &Env) -> Result<Self, Error> {
        if let Some(path) = env.get(env::CONFIG_PATH) {
            return Ok(Self::at(env.expand(path)));
        }
        let home = env.home().ok_or_else(|| {
            Error::failed("there is no home folder to keep the configuration in")
                .hint("set CONFIG_PATH to a file")
        })?;
        let folder = home.join(".levers9");
        let (config, old) = (folder.join("config"), folder.join("config.ini"));
        let config = if old.is_file() && !config.is_file() { old } else { config };
        Ok(Self { own_folder: true, ..Self::at(config) })
    }

    /// The files at a path of one's own: a configuration file, and
    /// `contexts.toml` beside it.
    #[must_use]
    pub fn at(config: PathBuf) -> Self {
        let addresses = config.with_file_name("contexts.toml");
        Self { config, addresses, own_folder: false }
    }

    /// Where the configuration file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.config
    }

    /// The line that makes a shell use these files.
    #[must_use]
    pub fn export_line(&self) -> String {
        format!("export {}={}", env::CONFIG_PATH, shell_quoted(&self.config.to_string_lossy()))
    }

    /// Reads both files. Files that are not there hold nothing.
    ///
    /// # Errors
    /// When one cannot be read or understood.
    pub fn load(&self) -> Result<Contexts, Error> {
        let read = |path: &Path| {
            files::read(path).map_err(|e| Error::failed(format!("cannot read {}", path.display())).because(e))
        };
        let config = read(&self.config)?.unwrap_or_default();
        let config = Config::parse(&config).map_err(|e| {
            Error::failed(format!("cannot understand {}", self.config.display()))
                .because(e)
                .hint("correct the line, or move the file away and log in again: levers9 login")
        })?;
        let text = read(&self.addresses)?.unwrap_or_default();
        let addresses = toml::from_str(&text).map_err(|e| self.bad_addresses(&text, &e))?;
        Ok(Contexts { config, addresses })
    }

    /// Changes both files while no other command does. Nothing is written when
    /// the change fails.
    ///
    /// # Errors
    /// When the files cannot be locked, read, understood or written, or with
    /// the change's own.
    pub fn change<T>(&self, change: impl FnOnce(&mut Contexts) -> Result<T, Error>) -> Result<T, Error> {
        let _lock = self.lock()?;
        let mut contexts = self.load()?;
        let result = change(&mut contexts)?;
        self.write(&contexts)?;
        Ok(result)
    }

    /// Adds or replaces a context, and makes it the default one when there is
    /// none. Whether that was so.
    ///
    /// # Errors
    /// As [`Store::change`].
    pub fn add(&self, name: &str, context: &Context) -> Result<bool, Error> {
        self.change(|contexts| {
            contexts.put(name, context);
            Ok(!contexts.has_default() && contexts.select(name))
        })
    }

    /// Makes sure that [`Store::change`] would work, before something is
    /// fetched that cannot be fetched again.
    ///
    /// # Errors
    /// As [`Store::change`].
    pub fn check_writable(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.load()?;
        files::check_writable(&self.config)
            .map_err(|e| Error::failed(format!("cannot write {}", self.config.display())).because(e))
    }

    fn lock(&self) -> Result<Lock, Error> {
        let folder = self.config.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        files::private_folder(folder, self.own_folder)
            .map_err(|e| Error::failed(format!("cannot make the folder {}", folder.display())).because(e))?;
        Lock::of(&self.config)
            .map_err(|e| Error::failed(format!("cannot lock {}", self.config.display())).because(e))
    }

    /// Addresses first: without one a new token is of no use, the other way
    /// around nothing is lost.
    fn write(&self, contexts: &Contexts) -> Result<(), Error> {
        let addresses = toml::to_string(&contexts.addresses)
            .map_err(|e| Error::failed(format!("cannot write {}", self.addresses.display())).because(e))?;
        for (path, text) in [(&self.addresses, addresses), (&self.config, contexts.config.render())] {
            files::replace(path, &text)
                .map_err(|e| Error::failed(format!("cannot write {}", path.display())).because(e))?;
        }
        Ok(())
    }

    fn bad_addresses(&self, text: &str, error: &toml::de::Error) -> Error {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        Error::failed(format!("cannot understand {}, line {line}", self.addresses.display()))
            .because(error.message().to_owned())
            .hint("correct the line, or move the file away and log in again: levers9 login")
    }
}

mod address_text {
    use levers9_transport::Address;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Text as one word of a shell's command line.
#[must_use]
pub fn shell_quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use levers9_wire::token::Secret;

    fn context(token: &str, host: &str) -> Context {
        let section = Section {
            token: Secret::new(token),
            controlplane_host: host.to_owned(),
            controlplane_port: "1993".to_owned(),
            ..Section::default()
        };
        Context { section, address: Some(format!("levers9://{host}:443").parse().unwrap()) }
    }

    #[test]
    fn what_is_stored_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("deep/config"));
        assert!(store.add("prod", &context("t", "prod.example")).unwrap(), "the first is the default");
        assert!(!store.add("dev", &context("t", "dev.example")).unwrap());
        let contexts = store.load().unwrap();
        assert_eq!(contexts.get("prod"), Some(context("t", "prod.example")));
        assert_eq!(contexts.get(DEFAULT), contexts.get("prod"));
        assert!(contexts.is_default("prod") && !contexts.is_default("dev"));
        assert!(store.change(|c| Ok(c.select("dev"))).unwrap());
        assert!(store.load().unwrap().is_default("dev"));
    }

    #[test]
    fn an_address_follows_the_controlplane_the_sdk_selected() {
        let mut contexts = Contexts::default();
        contexts.put(DEFAULT, &context("a", "a.example"));
        contexts.put("b", &context("b", "b.example"));
        // The SDK copies section b over the default one and leaves contexts.toml alone.
        contexts.config.put(DEFAULT, context("b", "b.example").section);
        assert_eq!(contexts.get(DEFAULT).unwrap().address, context("b", "b.example").address);
        contexts.config.put(DEFAULT, context("c", "c.example").section);
        assert_eq!(contexts.get(DEFAULT).unwrap().address, None);
    }

    #[test]
    fn two_writers_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("config"));
        std::thread::scope(|scope| {
            for index in 0..16 {
                let store = &store;
                scope.spawn(move || store.add(&format!("c{index}"), &context("t", "h")).unwrap());
            }
        });
        assert_eq!(store.load().unwrap().names().count(), 17, "sixteen and the default");
    }

    #[test]
    fn a_failed_change_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("config"));
        let failed = store.change(|c| {
            c.put("a", &context("t", "h"));
            Err::<(), _>(Error::failed("no"))
        });
        assert!(failed.is_err());
        assert_eq!(store.load().unwrap().names().count(), 0);
    }

    #[test]
    fn an_unknown_key_in_contexts_toml_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("config"));
        std::fs::write(
            &store.addresses,
            "[contexts.a]\naddress = \"levers9://x\"\ncontrolplane = \"y\"\npin = 1\n",
        )
        .unwrap();
        let words = store.load().unwrap_err().chain();
        assert!(words.contains("line 4") && words.contains("`pin`"), "{words}");
    }

    #[test]
    fn quotes_for_the_shell() {
        assert_eq!(shell_quoted("/a/b"), "/a/b");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
        assert_eq!(shell_quoted("levers9://h#sha256:1"), "'levers9://h#sha256:1'");
    }
}
