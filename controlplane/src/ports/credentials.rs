//! What a caller shows in its headers, the same on both ports but for the
//! names that the JSON gateway's convention prefixes. It judges nothing but
//! the form.

use std::net::SocketAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, USER_AGENT};
use levers9_wire::name::printable;
use levers9_wire::token::Secret;

use super::front::{Asked, AuthorizeError};

const BOOTSTRAP_SECRET: &str = "x-levers9-bootstrap-secret";
const CLIENT: &str = "x-levers9-client";
/// How REST callers spell what is metadata in gRPC.
const GATEWAY_PREFIX: &str = "grpc-metadata-";

/// Everything a caller shows. REST's spelling of a header counts as well.
pub(super) fn asked(headers: &HeaderMap, peer: SocketAddr) -> Result<Asked, AuthorizeError> {
    let client = metadata(headers, CLIENT).or_else(|| headers.get(USER_AGENT)?.to_str().ok());
    Ok(Asked {
        token: bearer(headers)?,
        bootstrap_secret: metadata(headers, BOOTSTRAP_SECRET).filter(|s| !s.is_empty()).map(Secret::new),
        peer,
        client: printable(client.unwrap_or_default(), 120),
    })
}

/// The bearer token; `None` when there is none.
pub(super) fn bearer(headers: &HeaderMap) -> Result<Option<Secret>, AuthorizeError> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let malformed =
        || AuthorizeError::Unauthenticated("the authorization header is not \"Bearer TOKEN\"".to_owned());
    let text = value.to_str().map_err(|_| malformed())?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(malformed());
    }
    let token = token.trim();
    Ok((!token.is_empty()).then(|| Secret::new(token)))
}

fn metadata<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let value = headers.get(name).or_else(|| headers.get(format!("{GATEWAY_PREFIX}{name}")))?;
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of(pairs: &[(&'static str, &'static str)]) -> Result<Asked, AuthorizeError> {
        let headers =
            pairs.iter().map(|(n, v)| (http::HeaderName::from_static(n), HeaderValue::from_static(v)));
        asked(&headers.collect(), "127.0.0.1:1".parse().unwrap())
    }

    #[test]
    fn reads_both_spellings_and_shows_no_secret() {
        for name in ["x-levers9-bootstrap-secret", "grpc-metadata-x-levers9-bootstrap-secret"] {
            let asked =
                of(&[(name, "hunter2"), ("authorization", "bearer  t0ken"), ("user-agent", "curl")]).unwrap();
            assert_eq!(asked.bootstrap_secret.as_ref().unwrap().expose(), "hunter2");
            assert_eq!(asked.token.as_ref().unwrap().expose(), "t0ken");
            assert_eq!(asked.client, "curl");
            let shown = format!("{asked:?}");
            assert!(!shown.contains("hunter2") && !shown.contains("t0ken"), "{shown}");
        }
    }

    #[test]
    fn an_empty_token_is_none_and_another_scheme_is_refused_unquoted() {
        assert!(of(&[("authorization", "Bearer ")]).unwrap().token.is_none());
        let error = of(&[("authorization", "Basic aHVudGVyMg==")]).unwrap_err().to_string();
        assert_eq!(error, "the authorization header is not \"Bearer TOKEN\"");
    }
}
