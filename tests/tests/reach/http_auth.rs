//! Who may send requests to a container, and under which names (F37 and the
//! rules of `controlplane/src/ingress`).

use std::time::Duration;

use levers9_tests::http::Answer;
use levers9_tests::wait;

use crate::support::{PATIENCE, Shared, Site, ask, mark, shared, text};

fn with_token(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// A new token of a kind in the first workspace: its id and itself.
fn token(shared: &Shared, kind: &str) -> (String, String) {
    let made = shared.world.cli(&["token", "create", "--kind", kind, "--format", "json"]).ok().json();
    (text(&made["id"]).to_owned(), text(&made["key"]).to_owned())
}

/// The token of a new workspace.
fn stranger(shared: &Shared) -> String {
    let name = format!("w{}", mark().trim_end_matches('-'));
    let made = shared.world.cli(&["workspace", "create", &name, "--format", "json"]).ok().json();
    text(&made["token"]).to_owned()
}

/// Fails unless the controlplane answered in a container's place.
#[track_caller]
fn refused(answer: Answer, status: u16, reason: &str) -> Answer {
    let answer = answer.with(status);
    assert_eq!(answer.head.text("x-levers9-reason"), reason, "{}", answer.text());
    assert_eq!(answer.head.text("cache-control"), "no-store");
    assert_eq!(answer.text().lines().count(), 1, "one plain sentence: {}", answer.text());
    answer
}

#[test]
fn a_public_container_lets_everybody_in() {
    let site = &shared().public;
    assert_eq!(site.get("/x").with(200).text(), "ok /x");
    // A header that is the container's own business is its own.
    let echo = site.ask("GET", "/echo-head", &with_token("anything"), b"").with(200).text();
    assert!(echo.to_ascii_lowercase().contains("authorization: bearer anything\r\n"), "{echo}");
}

#[test]
fn a_private_container_wants_a_token_of_its_workspace() {
    let shared = shared();
    let site = &shared.private;
    let none = refused(site.get("/x"), 401, "token");
    assert_eq!(none.head.text("www-authenticate"), "Bearer");
    assert!(none.text().contains("Authorization: Bearer TOKEN"), "{}", none.text());
    for wrong in ["Authorization: Basic eDp5\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer\r\n"]
    {
        let _refused = refused(site.ask("GET", "/x", wrong, b""), 401, "token");
    }
    for kind in ["workspace", "workspace_restricted", "admin"] {
        let (_, token) = token(shared, kind);
        let echo = site.ask("GET", "/echo-head", &with_token(&token), b"").with(200).text();
        let echo = echo.to_ascii_lowercase();
        // What the controlplane has used is not shown to the container.
        assert!(
            !echo.contains("authorization") && !echo.contains(&token.to_ascii_lowercase()),
            "{kind}: {echo}"
        );
    }
    let theirs = refused(site.ask("GET", "/x", &with_token(&stranger(shared)), b""), 404, "not-found");
    let nowhere = Site { prefix: format!("/box/none-aaaaaaaa/{}", site.origin.port()), ..site.clone() };
    let no_such = refused(nowhere.ask("GET", "/x", &with_token(&stranger(shared)), b""), 404, "not-found");
    assert_eq!(theirs.body, no_such.body, "a stranger cannot tell whether it is there");
    // Without a token neither can anybody.
    assert_eq!(refused(nowhere.get("/x"), 401, "token").body, none.body);
}

#[test]
fn a_revoked_token_is_out_within_five_seconds() {
    let shared = shared();
    let (id, key) = token(shared, "workspace");
    let lines = with_token(&key);
    assert_eq!(shared.private.ask("GET", "/x", &lines, b"").with(200).text(), "ok /x");
    let _deleted = shared.world.cli(&["token", "delete", &id]).ok();
    wait::until("the token is refused", Duration::from_secs(5), || {
        match shared.private.ask("GET", "/x", &lines, b"").status() {
            401 => Ok(()),
            status => Err(status.to_string()),
        }
    });
}

/// A name stands for the newest of it, for those of its workspace.
#[test]
fn a_name_alone_needs_a_token() {
    let shared = shared();
    let named = |site: &Site, name: &str| Site {
        prefix: format!("/box/{name}/{}", site.origin.port()),
        ..site.clone()
    };
    let lines = with_token(&token(shared, "workspace").1);
    let closed = named(&shared.private, "closed");
    let echo = closed.ask("GET", "/echo-head", &lines, b"").with(200).text().to_ascii_lowercase();
    assert!(!echo.contains("authorization"), "{echo}");
    assert!(echo.contains(&format!("x-forwarded-prefix: {}\r\n", closed.prefix)), "{echo}");
    // Even of a public one: names are a workspace's own.
    for site in [&closed, &named(&shared.public, "open")] {
        let _refused = refused(site.get("/x"), 401, "token");
        let theirs = site.ask("GET", "/x", &with_token(&stranger(shared)), b"");
        let _refused = refused(theirs, 404, "not-found");
    }
}

#[test]
fn only_what_is_exposed_is_there() {
    let shared = shared();
    let site = &shared.public;
    let on = |port: u16| Site { prefix: format!("/box/{}/{port}", site.slug()), ..site.clone() };
    for port in [1, 22, shared.private.origin.port(), site.at.port()] {
        let _refused = refused(on(port).get("/x"), 404, "not-found");
    }
    for path in ["/box/", "/box/x", "/box/x/", "/box//80/", "/box/x/0/", "/box/x/+1/", "/box/x/99999/"] {
        let odd = Site { prefix: path.to_owned(), ..site.clone() };
        let _refused = refused(odd.get(""), 404, "not-found");
    }
}

#[test]
fn a_folder_without_its_slash_is_led_to_it() {
    let site = &shared().public;
    for (query, to) in [("", "/"), ("?a=1&b=//x", "/?a=1&b=//x")] {
        let answer = site.get(query).with(308);
        assert_eq!(answer.head.text("location"), format!("{}{to}", site.prefix));
    }
}

/// A stranger's name that leads here must not let its pages in.
#[test]
fn containers_are_served_under_names_of_this_machine_only() {
    let shared = shared();
    let site = &shared.public;
    let (port, prefix) = (site.at.port(), &site.prefix);
    let get = |target: &str, host: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        ask(&mut site.connect(), "GET", head.as_bytes())
    };
    for host in [format!("localhost:{port}"), "127.0.0.1".to_owned(), format!("[::1]:{port}")] {
        let echo = get(&format!("{prefix}/echo-head"), &host).with(200).text().to_ascii_lowercase();
        assert!(echo.contains(&format!("host: {host}\r\n")), "{echo}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "127.0.0.2", "0.0.0.0", ""] {
        let _refused = refused(get(&format!("{prefix}/x"), host), 421, "wrong-host");
    }
    // What stands in the address counts before the header.
    let _refused = refused(get(&format!("http://evil.example{prefix}/x"), "localhost"), 421, "wrong-host");
    let echo = get(&format!("http://localhost{prefix}/echo-head"), "evil.example");
    assert!(echo.with(200).text().to_ascii_lowercase().contains("host: localhost\r\n"));
    // The controlplane's own pages are for any name.
    assert_eq!(get("/healthz", "evil.example").status(), 200);
}

/// The log tells who asked for what, and nothing that is a secret.
#[test]
fn the_log_has_no_secrets() {
    let shared = shared();
    let (_, key) = token(shared, "workspace");
    let id = mark();
    let path = format!("/logged-{id}?query=secretquery");
    let lines = format!("{}X-Secret: secretheader\r\nCookie: secretcookie=1\r\n", with_token(&key));
    let answer = shared.private.ask("POST", &path, &format!("{lines}Content-Length: 10\r\n"), b"secretbody");
    assert_eq!(answer.status(), 200);
    let wrong = format!("l9_ws_{}", "w".repeat(64));
    let answer = shared.private.ask("GET", &path, &with_token(&wrong), b"");
    assert_eq!(answer.status(), 401);
    let log = wait::until("both requests are in the log", PATIENCE, || {
        let log = shared.world.controlplane.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(&format!("logged-{id}"))).collect();
        if lines.len() >= 2 { Ok(log.clone()) } else { Err(format!("{lines:?}")) }
    });
    let line = log.lines().find(|line| line.contains(&format!("logged-{id}"))).expect("it was seen");
    for word in ["POST", "200", "127.0.0.1"] {
        assert!(line.contains(word), "{word} is not in {line}");
    }
    for secret in [key.as_str(), wrong.as_str(), "secretquery", "secretheader", "secretcookie", "secretbody"]
    {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}
