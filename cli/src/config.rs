//! The configuration file that is shared with the Python SDK: an INI file
//! whose sections are contexts, with the SDK's five keys in each. This module
//! reads and writes its text; [`crate::contexts`] owns the file.
//!
//! The SDK reads the section `default` into every other one, rewrites the
//! whole file and drops what it does not know. So does this: each section is
//! written with all five keys, as they counted before, and nothing else.

use levers9_wire::token::Secret;

/// The section that counts when no context is named.
pub const DEFAULT: &str = "default";

const KEYS: [&str; 5] = ["token", "controlplane_host", "controlplane_port", "controlplane_http_url", "tls"];
/// Older names the SDK still reads.
const OLD_KEYS: [(&str, &str); 2] =
    [("gateway_host", "controlplane_host"), ("gateway_port", "controlplane_port")];

/// Why some text is not a configuration file. The text itself may hold a
/// token, so it is never quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadConfig {
    line: usize,
    problem: &'static str,
}

/// What one context's section holds; empty text is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// The token.
    pub token: Secret,
    /// The host of the gRPC port.
    pub controlplane_host: String,
    /// The gRPC port.
    pub controlplane_port: String,
    /// The URL of the REST API, where it is not the gRPC host.
    pub controlplane_http_url: String,
    /// `true` or `false` when the gRPC port's TLS does not follow from its number.
    pub tls: String,
}

impl Section {
    /// The host and port of the gRPC side, which tell controlplanes apart.
    #[must_use]
    pub fn controlplane(&self) -> String {
        format!("{}:{}", self.controlplane_host, self.controlplane_port)
    }

    fn value(&self, key: &str) -> &str {
        match key {
            "token" => self.token.expose(),
            "controlplane_host" => &self.controlplane_host,
            "controlplane_port" => &self.controlplane_port,
            "controlplane_http_url" => &self.controlplane_http_url,
            _ => &self.tls,
        }
    }
}

/// The sections of one file, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    sections: Vec<(String, Section)>,
}

impl Config {
    /// Reads a file's text.
    ///
    /// # Errors
    /// With the line that the SDK would not read either, or not as one value.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let raw = parse_lines(text)?;
        let default = raw.iter().find(|(name, _)| name == DEFAULT).map(|(_, pairs)| pairs.as_slice());
        let effective = |pairs: &[Pair]| {
            let of = |key| find(pairs, key).or_else(|| find(default?, key)).unwrap_or_default();
            Section {
                token: Secret::new(of("token")),
                controlplane_host: of("controlplane_host"),
                controlplane_port: of("controlplane_port"),
                controlplane_http_url: of("controlplane_http_url"),
                tls: of("tls"),
            }
        };
        Ok(Self { sections: raw.iter().map(|(name, pairs)| (name.clone(), effective(pairs))).collect() })
    }

    /// The file's text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let is_default = |(name, _): &&(String, Section)| name == DEFAULT;
        let rest = self.sections.iter().filter(|section| !is_default(section));
        for (name, section) in self.sections.iter().filter(is_default).chain(rest) {
            text.push_str(&format!("[{name}]\n"));
            for key in KEYS {
                let line = format!("{key} = {}", section.value(key).replace('%', "%%"));
                text.push_str(line.trim_end());
                text.push('\n');
            }
            text.push('\n');
        }
        text
    }

    /// The names of the sections, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().map(|(name, _)| name.as_str())
    }

    /// A section.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|(known, _)| known == name).map(|(_, section)| section)
    }

    /// Adds or replaces a section.
    pub fn put(&mut self, name: &str, section: Section) {
        match self.sections.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = section,
            None => self.sections.push((name.to_owned(), section)),
        }
    }

    /// Removes a section; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.sections.len();
        self.sections.retain(|(known, _)| known != name);
        self.sections.len() < before
    }
}

type Pair = (String, String);

/// A key's value, under its name or the older one.
fn find(pairs: &[Pair], key: &str) -> Option<String> {
    let named = |name: &str| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let old = OLD_KEYS.iter().find(|(_, new)| *new == key).and_then(|(old, _)| named(old));
    match (named(key), old) {
        (Some(value), Some(old)) if value.is_empty() => Some(old),
        (value, old) => value.or(old),
    }
}

fn parse_lines(text: &str) -> Result<Vec<(String, Vec<Pair>)>, BadConfig> {
    let mut sections: Vec<(String, Vec<Pair>)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bad = |problem| BadConfig { line: index + 1, problem };
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if sections.iter().any(|(known, _)| known == name) {
                return Err(bad("this section is there twice"));
            }
            sections.push((name.to_owned(), Vec::new()));
            continue;
        }
        let (_, pairs) = sections.last_mut().ok_or_else(|| bad("a [section] has to come first"))?;
        if line.starts_with([' ', '\t']) {
            return Err(bad("it is indented; a value has to stand on one line"));
        }
        let (key, value) = trimmed.split_once(['=', ':']).ok_or_else(|| bad("this is no \"key = value\""))?;
        let key = key.trim().to_lowercase();
        if pairs.iter().any(|(known, _)| *known == key) {
            return Err(bad("this key is there twice"));
        }
        pairs.push((key, value.trim().replace("%%", "%")));
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(token: &str, host: &str) -> Section {
        Section {
            token: Secret::new(token),
            controlplane_host: host.to_owned(),
            controlplane_port: "1993".to_owned(),
            ..Section::default()
        }
    }

    #[test]
    fn every_section_is_written_with_all_five_keys_and_the_default_first() {
        let mut config = Config::default();
        config.put("prod", section("p", "prod.example"));
        config.put(DEFAULT, section("d", "127.0.0.1"));
        let text = config.render();
        assert_eq!(
            text,
            "[default]\ntoken = d\ncontrolplane_host = 127.0.0.1\ncontrolplane_port = 1993\n\
             controlplane_http_url =\ntls =\n\n\
             [prod]\ntoken = p\ncontrolplane_host = prod.example\ncontrolplane_port = 1993\n\
             controlplane_http_url =\ntls =\n\n"
        );
        let again = Config::parse(&text).unwrap();
        assert_eq!(again.get("prod"), config.get("prod"));
        assert_eq!(again.render(), text);
    }

    #[test]
    fn sections_inherit_from_the_default_until_they_say_otherwise() {
        let text = "[default]\ntoken = d\ncontrolplane_host = h\n[a]\ntoken = a\n[b]\ntoken =\n";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.get("a").unwrap().controlplane_host, "h");
        assert_eq!(config.get("a").unwrap().token.expose(), "a");
        assert!(config.get("b").unwrap().token.is_empty());
    }

    #[test]
    fn reads_what_the_sdk_reads() {
        let text = "# c\n; c\n[x y]\nToken: a=b\ngateway_host = old\ncontrolplane_host =\n\
                    controlplane_http_url = https://h/%%41\nunknown = 1\n";
        let section = Config::parse(text).unwrap().get("x y").unwrap().clone();
        assert_eq!(section.token.expose(), "a=b");
        assert_eq!(section.controlplane_host, "old");
        assert_eq!(section.controlplane_http_url, "https://h/%41");
    }

    #[test]
    fn what_is_wrong_is_named_by_line_and_never_quoted() {
        let of = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert_eq!(of("token = x"), "line 1: a [section] has to come first");
        assert_eq!(of("[a]\nhunter2"), "line 2: this is no \"key = value\"");
        assert_eq!(of("[a]\n[a]"), "line 2: this section is there twice");
        assert_eq!(of("[a]\nk=1\nK=2"), "line 3: this key is there twice");
        assert!(of("[a]\ntoken = a\n  hunter2").starts_with("line 3: it is indented"));
    }

    #[test]
    fn removing_tells_whether_there_was_one() {
        let mut config = Config::parse("[a]\n[b]\n").unwrap();
        assert!(config.remove("a"));
        assert!(!config.remove("a"));
        assert_eq!(config.names().collect::<Vec<_>>(), ["b"]);
    }
}
