//! What of a message's headers passes between a client and a container. Pure.
//!
//! Values travel as bytes, repeated ones stay apart and in order. What is
//! about one connection ends there; what the controlplane consumed, or adds
//! for others to trust, never passes.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, HOST, HeaderName, HeaderValue, SET_COOKIE, TE, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, Uri, Version};

/// How a request came in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived<'a> {
    /// From where.
    pub(super) peer: IpAddr,
    /// With a host of its own, from HTTP/2.
    pub(super) uri: &'a Uri,
    /// What of the path was taken off.
    pub(super) prefix: &'a str,
    /// Its bearer token let it in.
    pub(super) token_used: bool,
    /// It asks for another protocol, which is passed on.
    pub(super) upgrades: bool,
}

/// Makes the headers of a request what the container gets.
pub(super) fn to_container(headers: &mut HeaderMap, arrived: Arrived<'_>) {
    let upgrade = if arrived.upgrades { headers.get(UPGRADE).cloned() } else { None };
    let trailers = headers.get_all(TE).iter().any(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    remove_hop_by_hop(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if arrived.token_used {
        headers.remove(AUTHORIZATION);
    }
    remove_own(headers);
    remove_own_cookies(headers);
    // The one of HTTP/2, or of a request written for a proxy, counts before the header.
    if let Some(authority) = arrived.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    add_forwarded(headers, arrived);
}

/// Makes the headers of an answer what the client gets. `upgraded` when both
/// sides leave HTTP.
pub(super) fn to_client(headers: &mut HeaderMap, upgraded: bool) {
    let upgrade = if upgraded { headers.get(UPGRADE).cloned() } else { None };
    remove_hop_by_hop(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    // A container must not log somebody in or out of the dashboard.
    if headers.get_all(SET_COOKIE).iter().any(is_own_cookie) {
        let kept: Vec<_> =
            headers.get_all(SET_COOKIE).iter().filter(|c| !is_own_cookie(c)).cloned().collect();
        headers.remove(SET_COOKIE);
        for cookie in kept {
            headers.append(SET_COOKIE, cookie);
        }
    }
    headers.remove(REASON);
}

/// Whether a request asks to leave HTTP, as only HTTP/1.1 can. HTTP/2 is not
/// left for: what came later on it would not come through here.
pub(super) fn wants_upgrade(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11
        && headers.contains_key(UPGRADE)
        && !names_in(headers, UPGRADE, "h2c")
        && names_in(headers, CONNECTION, "upgrade")
}

/// Whether a list of words in a header has one of them.
fn names_in(headers: &HeaderMap, header: HeaderName, word: &str) -> bool {
    let lists = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        // Somebody who names these means to hide them from what comes after.
        .filter(|name| *name != HOST && *name != http::header::CONTENT_LENGTH)
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn remove_own(headers: &mut HeaderMap) {
    let own = |name: &HeaderName| name.as_str().starts_with(OWN) || name.as_str() == TASK_ID;
    let names: Vec<HeaderName> = headers.keys().filter(|name| own(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn remove_own_cookies(headers: &mut HeaderMap) {
    let is_own = |pair: &&[u8]| trim(pair).starts_with(OWN_COOKIE);
    let has_own = |value: &HeaderValue| value.as_bytes().split(|b| *b == b';').any(|pair| is_own(&pair));
    if !headers.get_all(COOKIE).iter().any(has_own) {
        return;
    }
    let kept: Vec<HeaderValue> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| {
            let pairs: Vec<&[u8]> =
                value.as_bytes().split(|b| *b == b';').filter(|pair| !is_own(pair)).map(trim).collect();
            HeaderValue::from_bytes(&pairs.join(b"; ".as_slice())).ok().filter(|value| !value.is_empty())
        })
        .collect();
    headers.remove(COOKIE);
    for cookie in kept {
        headers.append(COOKIE, cookie);
    }
}

fn is_own_cookie(value: &HeaderValue) -> bool {
    trim(value.as_bytes()).starts_with(OWN_COOKIE)
}

fn trim(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii()
}

/// What a container may want to know of who is in front of it.
fn add_forwarded(headers: &mut HeaderMap, arrived: Arrived<'_>) {
    let peer = arrived.peer.to_string();
    let before = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let chain: Vec<&str> = before.chain([peer.as_str()]).collect();
    if let Ok(chain) = HeaderValue::from_str(&chain.join(", ")) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    headers.entry(FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    match HeaderValue::from_str(arrived.prefix) {
        Ok(prefix) if !prefix.is_empty() => drop(headers.insert(FORWARDED_PREFIX, prefix)),
        _ => drop(headers.remove(FORWARDED_PREFIX)),
    }
}

/// Says why the controlplane and not the container answers.
pub(super) const REASON: HeaderName = HeaderName::from_static("x-levers9-reason");
const OWN: &str = "x-levers9-";
const TASK_ID: &str = "x-task-id";
/// How the dashboard's cookies begin.
const OWN_COOKIE: &[u8] = b"levers9_";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-authenticate"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        map
    }

    fn arrived(uri: &Uri) -> Arrived<'_> {
        Arrived { peer: "10.0.0.7".parse().unwrap(), uri, prefix: "", token_used: false, upgrades: false }
    }

    fn passed(pairs: &[(&str, &[u8])], change: impl FnOnce(&mut Arrived<'_>)) -> HeaderMap {
        let uri = Uri::from_static("/");
        let mut how = arrived(&uri);
        change(&mut how);
        let mut headers = map(pairs);
        to_container(&mut headers, how);
        headers
    }

    fn all<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h [u8]> {
        headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    #[test]
    fn values_pass_as_bytes_and_repeated_ones_in_order() {
        let long = vec![b'x'; 7 * 1024];
        let headers = passed(
            &[("a", b"\xe9"), ("a", "ü".as_bytes()), ("a", b""), ("a", &long), ("user-agent", b"\xff")],
            |_| {},
        );
        assert_eq!(all(&headers, "a"), [b"\xe9".as_slice(), "ü".as_bytes(), b"", &long]);
        assert_eq!(all(&headers, "user-agent"), [b"\xff"]);
    }

    #[test]
    fn what_is_of_one_connection_ends_there() {
        let headers = passed(
            &[
                ("connection", b"close, X-Secret, host, content-length"),
                ("x-secret", b"1"),
                ("host", b"h"),
                ("content-length", b"0"),
                ("keep-alive", b"timeout=5"),
                ("proxy-authorization", b"Basic eA=="),
                ("te", b"Trailers"),
                ("transfer-encoding", b"chunked"),
                ("upgrade", b"websocket"),
                ("trailer", b"grpc-status"),
            ],
            |_| {},
        );
        for gone in
            ["connection", "x-secret", "keep-alive", "proxy-authorization", "transfer-encoding", "upgrade"]
        {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        for kept in ["host", "content-length", "te", "trailer"] {
            assert!(headers.contains_key(kept), "{kept}");
        }
    }

    #[test]
    fn an_upgrade_passes_when_it_is_one() {
        let pairs: &[(&str, &[u8])] =
            &[("connection", b"keep-alive, Upgrade"), ("upgrade", b"websocket"), ("sec-websocket-key", b"k")];
        assert!(wants_upgrade(Version::HTTP_11, &map(pairs)));
        assert!(!wants_upgrade(Version::HTTP_10, &map(pairs)));
        assert!(!wants_upgrade(Version::HTTP_11, &map(&[("upgrade", b"websocket")])));
        let h2c: &[(&str, &[u8])] = &[("connection", b"upgrade, http2-settings"), ("upgrade", b"H2C")];
        assert!(!wants_upgrade(Version::HTTP_11, &map(h2c)));
        let headers = passed(pairs, |how| how.upgrades = true);
        assert_eq!(all(&headers, "connection"), [b"upgrade"]);
        assert_eq!(all(&headers, "upgrade"), [b"websocket"]);
    }

    #[test]
    fn what_the_controlplane_consumed_or_vouches_for_does_not_pass() {
        let headers = passed(
            &[
                ("authorization", b"Bearer t"),
                ("x-task-id", b"forged"),
                ("x-levers9-anything", b"forged"),
                ("cookie", b"a=1; levers9_session=s; b=2"),
                ("cookie", b" levers9_x=1"),
            ],
            |how| how.token_used = true,
        );
        assert_eq!(all(&headers, "cookie"), [b"a=1; b=2"]);
        for gone in ["authorization", "x-task-id", "x-levers9-anything"] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        let headers = passed(&[("authorization", b"Bearer theirs"), ("cookie", b"a=1;b")], |_| {});
        assert_eq!(all(&headers, "authorization"), [b"Bearer theirs"], "a public app's own business");
        assert_eq!(all(&headers, "cookie"), [b"a=1;b"], "untouched");
    }

    #[test]
    fn says_who_is_in_front() {
        let headers =
            passed(&[("x-forwarded-for", b"1.2.3.4"), ("host", b"h:1")], |how| how.prefix = "/box/a/1");
        assert_eq!(all(&headers, "x-forwarded-for"), [b"1.2.3.4, 10.0.0.7"]);
        assert_eq!(all(&headers, "x-forwarded-host"), [b"h:1"]);
        assert_eq!(all(&headers, "x-forwarded-prefix"), [b"/box/a/1"]);
        let uri: Uri = "http://name.test:8/p".parse().unwrap();
        let mut headers = HeaderMap::new();
        to_container(&mut headers, arrived(&uri));
        assert_eq!(all(&headers, "host"), [b"name.test:8"]);
    }

    #[test]
    fn an_answer_keeps_its_own_cookies_and_loses_ours() {
        let mut headers = map(&[
            ("set-cookie", b"a=1"),
            ("set-cookie", b"levers9_session=x"),
            ("set-cookie", b"b=2"),
            ("connection", b"close"),
            ("x-levers9-reason", b"forged"),
            ("content-length", b"7"),
        ]);
        to_client(&mut headers, false);
        assert_eq!(all(&headers, "set-cookie"), [b"a=1", b"b=2"]);
        assert_eq!(all(&headers, "content-length"), [b"7"]);
        assert!(!headers.contains_key("connection") && !headers.contains_key("x-levers9-reason"));
    }
}
