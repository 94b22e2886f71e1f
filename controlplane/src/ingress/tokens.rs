//! Who sends a request. What a token is good for is remembered for a moment,
//! so that a request costs no query: a revoked one is good for two seconds
//! more at most.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use levers9_wire::token::Secret;
use tokio::time::Instant;

use super::refusal::Refusal;
use crate::auth::Identity;
use crate::state::{Shared, now_ms};
use crate::store::TokenHash;

/// How long an answer of the database counts.
const REMEMBERED: Duration = Duration::from_secs(2);
/// The most tokens remembered.
const MOST: usize = 4096;

/// Tokens that were good, and when.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    good: Mutex<HashMap<TokenHash, (Identity, Instant)>>,
}

impl Tokens {
    /// Who a request's bearer token speaks for.
    pub(super) async fn who(
        &self,
        state: &Shared,
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Result<Identity, Refusal> {
        let missing = "this container is private: send the header \"Authorization: Bearer TOKEN\" with a token \
            of its workspace";
        let token = bearer(headers).ok_or_else(|| Refusal::unauthorized(missing))?;
        let hash = TokenHash::of(&token);
        if let Some(who) = self.remembered(&hash) {
            return Ok(who);
        }
        // One that was good before is not locked out by others from its address.
        if state.failures.must_wait(peer, Instant::now()) && !self.was_good(&hash) {
            let text = "too many failures from this address; wait a minute";
            return Err(Refusal::new(http::StatusCode::TOO_MANY_REQUESTS, "too-many", text));
        }
        let found = state.store.token_by_hash(hash).await.map_err(|error| {
            tracing::warn!(error = %error.chain(), "a token cannot be checked");
            let text = "the controlplane cannot check the token now";
            Refusal::new(http::StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
        })?;
        let now = now_ms();
        let good = found.filter(|t| t.revoked_ms.is_none() && t.expires_ms.is_none_or(|end| end > now));
        let Some(row) = good else {
            self.forget(&hash);
            state.failures.failed(peer, Instant::now());
            return Err(Refusal::unauthorized("the token is not valid"));
        };
        let who = Identity::from(&row);
        self.remember(hash, who.clone());
        Ok(who)
    }

    fn was_good(&self, hash: &TokenHash) -> bool {
        self.good.lock().unwrap_or_else(PoisonError::into_inner).contains_key(hash)
    }

    fn forget(&self, hash: &TokenHash) {
        self.good.lock().unwrap_or_else(PoisonError::into_inner).remove(hash);
    }

    fn remembered(&self, hash: &TokenHash) -> Option<Identity> {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.get(hash).filter(|(_, since)| since.elapsed() < REMEMBERED).map(|(who, _)| who.clone())
    }

    fn remember(&self, hash: TokenHash, who: Identity) {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        if good.len() >= MOST {
            good.retain(|_, (_, since)| since.elapsed() < REMEMBERED);
        }
        if good.len() < MOST {
            good.insert(hash, (who, Instant::now()));
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<Secret> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| Secret::new(token))
}
