//! Where containers are served and what a request means by it. Pure.
//!
//! With a host suffix each has names of its own, `SLUG.apps.example.org` for
//! its first port and `SLUG--8000.apps.example.org` for another, so that no
//! container shares an origin with the dashboard or with another container.
//! Without one, and only where the port listens on loopback, they are served
//! by path: `/box/SLUG/8000/…`. A name stands in the place of the slug for
//! whoever has a token of its workspace.

use std::net::SocketAddr;

use rand::{Rng as _, RngCore};

/// Where requests to containers come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    /// Under names of a suffix.
    Hosts(Suffix),
    /// By path, on loopback.
    Paths(SocketAddr),
    /// Nowhere: no suffix is set, and the port is open to others.
    Nowhere,
}

/// `https://*.apps.example.org`: how the names of containers are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suffix {
    https: bool,
    /// With the dot before it, in lower case.
    suffix: String,
    port: Option<u16>,
}

/// Why a text is no suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not of the form https://*.apps.example.org, with a port or without")]
pub struct BadSuffix;

impl std::str::FromStr for Suffix {
    type Err = BadSuffix;

    fn from_str(text: &str) -> Result<Self, BadSuffix> {
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(BadSuffix),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest).strip_prefix('*').ok_or(BadSuffix)?;
        let (suffix, port) = match rest.split_once(':') {
            Some((suffix, port)) => (suffix, Some(port.parse().map_err(|_| BadSuffix)?)),
            None => (rest, None),
        };
        let label = |label: &str| {
            let good = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            !label.is_empty() && label.len() <= 63 && label.bytes().all(good)
        };
        let labels = suffix.strip_prefix('.').ok_or(BadSuffix)?;
        // A label of a container has at most 63 characters; a name 253.
        if suffix.len() > 253 - 63 || !labels.split('.').all(label) {
            return Err(BadSuffix);
        }
        Ok(Self { https, suffix: suffix.to_ascii_lowercase(), port })
    }
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// A slug or a name.
    pub name: String,
    /// The port; the first that is exposed when none is given.
    pub port: Option<u16>,
    /// How much of the path's front names the container, in bytes.
    pub prefix: usize,
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A container.
    Container(Route),
    /// A container's folder without its last slash: relative links would miss it.
    SlashMissing,
    /// A container, by a name that is not served here.
    WrongHost,
    /// Nothing that can be a container.
    NoContainer,
    /// The controlplane itself.
    Other,
}

impl Serving {
    /// What a request for a host and a path means.
    #[must_use]
    pub fn asked(&self, host: Option<&str>, path: &str) -> Asked {
        let host = host.map(without_port).unwrap_or_default();
        match self {
            Self::Hosts(suffix) => suffix.asked(host),
            Self::Paths(_) => match path.strip_prefix(FOLDER) {
                None => Asked::Other,
                // Any other name may be a stranger's that leads here.
                Some(_) if !is_loopback(host) => Asked::WrongHost,
                Some(rest) => of_path(rest),
            },
            Self::Nowhere if path.starts_with(FOLDER) => Asked::WrongHost,
            Self::Nowhere => Asked::Other,
        }
    }

    /// Where a port of a task is served; `None` for nowhere.
    #[must_use]
    pub fn url(&self, slug: &str, port: u16, is_first: bool) -> Option<String> {
        match self {
            Self::Hosts(Suffix { https, suffix, port: theirs }) => {
                let scheme = if *https { "https" } else { "http" };
                let label = if is_first { slug.to_owned() } else { format!("{slug}--{port}") };
                let theirs = theirs.map(|port| format!(":{port}")).unwrap_or_default();
                Some(format!("{scheme}://{label}{suffix}{theirs}/"))
            }
            Self::Paths(address) => Some(format!("http://{address}{FOLDER}{slug}/{port}/")),
            Self::Nowhere => None,
        }
    }

    /// Where the ports of a task are served, in their order.
    #[must_use]
    pub fn urls(&self, slug: &str, ports: &[u16]) -> Vec<String> {
        let url = |(index, port): (usize, &u16)| self.url(slug, *port, index == 0);
        ports.iter().enumerate().filter_map(url).collect()
    }
}

impl Suffix {
    fn asked(&self, host: &str) -> Asked {
        let host = host.to_ascii_lowercase();
        let Some(label) = host.strip_suffix(&self.suffix) else { return Asked::Other };
        let (name, port) = match label.rsplit_once("--") {
            Some((name, port)) => match port.parse() {
                Ok(port) => (name, Some(port)),
                Err(_) => return Asked::NoContainer,
            },
            None => (label, None),
        };
        if name.is_empty() || name.contains('.') || port == Some(0) {
            return Asked::NoContainer;
        }
        Asked::Container(Route { name: name.to_owned(), port, prefix: 0 })
    }
}

/// What comes after the folder of all containers.
fn of_path(rest: &str) -> Asked {
    let Some((name, after)) = rest.split_once('/') else { return Asked::NoContainer };
    let (port, slash) = match after.split_once('/') {
        Some((port, _)) => (port, true),
        None => (after, false),
    };
    match port.parse() {
        Ok(number) if number > 0 && !name.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            if !slash {
                return Asked::SlashMissing;
            }
            let prefix = FOLDER.len() + name.len() + 1 + port.len();
            Asked::Container(Route { name: name.to_owned(), port: Some(number), prefix })
        }
        _ => Asked::NoContainer,
    }
}

fn without_port(host: &str) -> &str {
    match (host.starts_with('['), host.rfind(']'), host.rfind(':')) {
        (true, Some(end), _) => &host[..=end],
        (false, _, Some(colon)) => &host[..colon],
        _ => host,
    }
}

fn is_loopback(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|one| host.eq_ignore_ascii_case(one))
}

/// A slug for a name: what of it fits a host name, and eight letters and
/// digits that nobody guesses.
#[must_use]
pub fn slug(name: &str, rng: &mut dyn RngCore) -> String {
    let mut slug = String::new();
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() == SLUG_NAME {
            break;
        }
    }
    let name = match slug.trim_end_matches('-') {
        "" => "job",
        name => name,
    };
    let random: String = (0..8).map(|_| char::from(BASE32[rng.random_range(0..BASE32.len())])).collect();
    format!("{name}-{random}")
}

/// Where containers are, by path.
pub const FOLDER: &str = "/box/";
/// What of a name goes into a slug, so that a port fits beside it into a label.
const SLUG_NAME: usize = 40;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    fn container(name: &str, port: Option<u16>, prefix: usize) -> Asked {
        Asked::Container(Route { name: name.to_owned(), port, prefix })
    }

    #[test]
    fn names_of_a_suffix_lead_to_containers_and_nothing_else_does() {
        let serving = Serving::Hosts("https://*.apps.example.org:8443".parse().unwrap());
        for (host, expected) in [
            ("web-abcdefgh.apps.example.org", container("web-abcdefgh", None, 0)),
            ("WEB.Apps.Example.ORG:8443", container("web", None, 0)),
            ("web--8000.apps.example.org", container("web", Some(8000), 0)),
            ("web--99999.apps.example.org", Asked::NoContainer),
            ("web--0.apps.example.org", Asked::NoContainer),
            ("a.b.apps.example.org", Asked::NoContainer),
            (".apps.example.org", Asked::NoContainer),
            ("apps.example.org", Asked::Other),
            ("levers9.example.org", Asked::Other),
            ("webapps.example.org", Asked::Other),
            ("[::1]:1994", Asked::Other),
        ] {
            assert_eq!(serving.asked(Some(host), "/box/x/1/"), expected, "{host}");
        }
        assert_eq!(serving.asked(None, "/"), Asked::Other);
        assert_eq!(
            serving.urls("web-abcdefgh", &[8000, 9000]),
            [
                "https://web-abcdefgh.apps.example.org:8443/",
                "https://web-abcdefgh--9000.apps.example.org:8443/"
            ]
        );
    }

    #[test]
    fn paths_lead_to_containers_on_loopback_names_only() {
        let serving = Serving::Paths("127.0.0.1:1994".parse().unwrap());
        for (path, expected) in [
            ("/box/web/8000/", container("web", Some(8000), 13)),
            ("/box/web/8000/a//b?c", container("web", Some(8000), 13)),
            ("/box/web/8000", Asked::SlashMissing),
            ("/box/web/", Asked::NoContainer),
            ("/box/web", Asked::NoContainer),
            ("/box//8000/", Asked::NoContainer),
            ("/box/web/0/", Asked::NoContainer),
            ("/box/web/+80/", Asked::NoContainer),
            ("/box/web/65536/", Asked::NoContainer),
            ("/healthz", Asked::Other),
        ] {
            for host in ["localhost:1994", "127.0.0.1", "[::1]:1994", "LOCALHOST"] {
                assert_eq!(serving.asked(Some(host), path), expected, "{path} of {host}");
            }
        }
        for host in [None, Some(""), Some("evil.example"), Some("localhost.evil.example"), Some("127.0.0.2")]
        {
            assert_eq!(serving.asked(host, "/box/web/8000/"), Asked::WrongHost, "{host:?}");
        }
        let url = "http://127.0.0.1:1994/box/web/8000/";
        assert_eq!(serving.url("web", 8000, true).as_deref(), Some(url));
        assert_eq!(Serving::Nowhere.urls("web", &[1]), Vec::<String>::new());
        assert_eq!(Serving::Nowhere.asked(Some("localhost"), "/box/web/8000/"), Asked::WrongHost);
    }

    #[test]
    fn suffixes_are_read_or_refused() {
        for bad in [
            "",
            "apps.example.org",
            "https://apps.example.org",
            "https://*apps",
            "ftp://*.a",
            "https://*.",
            "https://*.a..b",
            "https://*.a:b",
            "https://*.a/b",
        ] {
            assert_eq!(bad.parse::<Suffix>(), Err(BadSuffix), "{bad}");
        }
        assert!("http://*.localhost:8080/".parse::<Suffix>().is_ok());
    }

    #[test]
    fn slugs_fit_a_host_name_with_a_port_beside() {
        let mut rng = StdRng::seed_from_u64(1);
        for (name, front) in [
            ("Web", "web-"),
            ("my  Job__2!", "my-job-2-"),
            ("--", "job-"),
            ("", "job-"),
            ("é", "job-"),
            (&"x".repeat(63), &format!("{}-", "x".repeat(40))),
        ] {
            let slug = slug(name, &mut rng);
            assert!(slug.starts_with(front), "{slug}");
            assert_eq!(slug.len(), front.len() + 8, "{slug}");
            assert!(slug.len() + "--65535".len() <= 63 && !slug.contains("--"), "{slug}");
        }
    }
}
