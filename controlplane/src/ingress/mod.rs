//! HTTP into containers: takes a request that is for one, checks that it may
//! come in, and sends it on through a tunnel of the container's worker.
//! Bodies, answers and upgrades stream both ways as they come; whoever goes
//! away, the other side learns it at once. When no container answers, the
//! controlplane does, and says why.
//!
//! It parses no HTTP itself, and what it sends on was parsed and is written
//! anew, so that nothing can mean one request here and two there. It never
//! reaches a port that its task does not expose.

mod body;
mod headers;
mod pool;
mod refusal;
pub mod route;
mod tokens;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, EXPECT, HOST, LOCATION};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use levers9_wire::name::printable;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::auth::{Action, Identity, authorize};
use crate::places::Place;
use crate::ports::Cut;
use crate::reach::{self, Counted, What};
use crate::state::Shared;
use body::{Answer, Opener, Upload};
use headers::Arrived;
use pool::{Pool, Single};
use refusal::Refusal;
pub use route::Serving;
use route::{Asked, Route};
use tokens::Tokens;

/// The most a message's headers may take on every hop, in bytes.
pub const MAX_HEADER_BYTES: usize = 128 * 1024;
/// The most lines they may have.
pub const MAX_HEADER_LINES: usize = 1024;
/// A connection last used this recently is taken for a request that cannot be
/// sent twice; older ones may be closed at the other end just now.
const SURELY_OPEN: Duration = Duration::from_millis(300);
/// How old a connection may be for one that can.
const PROBABLY_OPEN: Duration = Duration::from_secs(10);
/// Lookups for those without a token, at once.
const STRANGERS: usize = 4;
/// What each side of an upgraded connection buffers, in bytes.
const RELAYED: usize = 32 * 1024;

/// Serves requests to containers.
#[derive(Debug)]
pub struct Ingress {
    state: Shared,
    tokens: Tokens,
    pool: Arc<Pool>,
    /// What strangers may have looked up in the database at once.
    lookups: Semaphore,
}

impl Ingress {
    /// Must be called inside a runtime.
    #[must_use]
    pub fn new(state: Shared) -> Self {
        let pool = Pool::start(Arc::clone(&state.open));
        Self { state, tokens: Tokens::default(), pool, lookups: Semaphore::new(STRANGERS) }
    }

    /// Ends every connection to a container.
    pub fn close(&self) {
        self.pool.close();
    }

    /// Answers a request when it is for a container; gives it back otherwise.
    ///
    /// # Errors
    /// With the request, when it is not.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<Response, Box<Request<Incoming>>> {
        let asked = self.state.options.serving.asked(host(&request), request.uri().path());
        if asked == Asked::Other {
            return Err(Box::new(request));
        }
        let begun = Instant::now();
        let open = self.state.open.one(What::Request);
        let (method, path) = (request.method().clone(), printable(request.uri().path(), 200));
        let result = match asked {
            Asked::Container(route) => self.forward(request, &route, peer, open).await,
            Asked::SlashMissing => with_slash(request.uri()),
            Asked::WrongHost => Err(Refusal::wrong_host()),
            Asked::NoContainer | Asked::Other => Err(Refusal::not_found()),
        };
        let (response, reason) = match result {
            Ok(response) => (response, ""),
            Err(refusal) => (refusal.response(), refusal.code),
        };
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let status = response.status().as_u16();
        tracing::info!(%method, path, status, ms, reason, peer = %peer.ip(), "request to a container");
        Ok(response)
    }

    async fn forward(
        &self,
        mut request: Request<Incoming>,
        route: &Route,
        peer: SocketAddr,
        open: Counted,
    ) -> Result<Response, Refusal> {
        check(&request)?;
        let (place, token_used) = self.find(request.headers(), route, peer).await?;
        let port = port_of(&place, route)?;
        let upgrades = headers::wants_upgrade(request.version(), request.headers());
        let cut = request.extensions().get::<Cut>().cloned().unwrap_or_default();
        let client = upgrades.then(|| (hyper::upgrade::on(&mut request), cut));
        let grpc = request.version() == Version::HTTP_2 && is_grpc(request.headers());
        let (parts, body) = request.into_parts();
        let (prefix, rest) = split(&parts.uri, route.prefix)?;
        let mut passed = parts.headers;
        let arrived =
            Arrived { peer: peer.ip().to_canonical(), uri: &parts.uri, prefix, token_used, upgrades };
        headers::to_container(&mut passed, arrived);
        let waits = !grpc && expects_continue(&passed);
        let (upload, opener) = match waits {
            true => {
                let (upload, opener) = Upload::on_demand(body);
                (upload, Some(opener))
            }
            false => (Upload::new(body), None),
        };
        let mut onward = Request::new(upload);
        *onward.method_mut() = parts.method;
        *onward.headers_mut() = passed;
        *onward.uri_mut() = if grpc { absolute(&parts.uri, rest)? } else { Uri::from(rest) };
        if grpc {
            return self.send_shared(onward, &place, port, open).await;
        }
        if let Some(opener) = opener.clone() {
            hyper::ext::on_informational(&mut onward, move |answer| {
                if answer.status() == StatusCode::CONTINUE {
                    opener.open();
                }
            });
        }
        self.send(onward, Waiting { opener, client, open }, &place, port).await
    }

    /// The container a request is for, and whether a token let it in.
    async fn find(
        &self,
        headers: &HeaderMap,
        route: &Route,
        peer: SocketAddr,
    ) -> Result<(Arc<Place>, bool), Refusal> {
        let state = &self.state;
        let by_slug = state.places.slug(&route.name);
        if let Some(place) = by_slug.as_ref().filter(|place| is_public(place)) {
            return Ok((Arc::clone(place), false));
        }
        let who = match self.tokens.who(state, headers, peer.ip().to_canonical()).await {
            Ok(who) => who,
            Err(refusal) if by_slug.is_some() => return Err(refusal),
            // A public one that is not there now may say so to everybody.
            Err(refusal) => {
                let public = self.public_away(&route.name).await.unwrap_or(Err(refusal));
                return public.map(|place| (place, false));
            }
        };
        let may = |place: &Arc<Place>| authorize(&who, Action::Invoke, Some(place.about.workspace));
        let by_name = || state.places.name(who.workspace?, &route.name);
        if let Some(place) = by_slug.filter(may).or_else(|| by_name().filter(may)) {
            return Ok((place, true));
        }
        match state.store.task_by_slug(route.name.clone()).await {
            Ok(Some(now)) if authorize(&who, Action::Invoke, Some(now.task.workspace)) => {
                Ok((reach::arrival(state, now, |_| true).await?, true))
            }
            Ok(_) => Ok((self.named(&who, &route.name).await?, true)),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }

    /// A container by a name that leads to none now, if it is expected.
    async fn named(&self, who: &Identity, name: &str) -> Result<Arc<Place>, Refusal> {
        let Some(workspace) = who.workspace else { return Err(Refusal::not_found()) };
        let found = self.state.store.exposed_task(workspace, name.to_owned()).await;
        match found.map_err(|error| unavailable(&error.to_string()))? {
            Some(now) if authorize(who, Action::Invoke, Some(workspace)) && reach::is_expected(&now) => {
                Ok(reach::arrival(&self.state, now, |_| true).await?)
            }
            _ => Err(Refusal::not_found()),
        }
    }

    /// A public container that is not there now, if it comes in time.
    async fn public_away(&self, slug: &str) -> Option<Result<Arc<Place>, Refusal>> {
        let looking = self.lookups.try_acquire().ok()?;
        let now = self.state.store.task_by_slug(slug.to_owned()).await.ok().flatten()?;
        drop(looking);
        let public = now.task.exposed.as_ref()?.public;
        Some(reach::arrival(&self.state, public.then_some(now)?, |_| true).await.map_err(Refusal::from))
    }

    /// Sends a request on one connection after another, until it is answered
    /// or was perhaps delivered.
    async fn send(
        &self,
        mut onward: Request<Upload>,
        waiting: Waiting,
        place: &Place,
        port: u16,
    ) -> Result<Response, Refusal> {
        let replayable = onward.body().is_end_stream() && onward.method().is_idempotent();
        let recent = if replayable { PROBABLY_OPEN } else { SURELY_OPEN };
        let mut used = if waiting.opener.is_none() { self.pool.take(place, port, recent) } else { None };
        loop {
            let (mut connection, again) = match used.take() {
                Some(connection) => (connection, replayable.then(|| copy_of(&onward))),
                None => (self.pool.connect(place, port).await.map_err(Refusal::from)?, None),
            };
            let mut failed = match connection.sender.try_send_request(onward).await {
                Ok(answer) => return Ok(self.answered(answer, connection, waiting)),
                Err(failed) => failed,
            };
            let unsent = failed.take_message();
            onward = match (unsent, again) {
                // Not a byte of it was sent.
                (Some(unsent), _) if connection.sender.is_closed() => unsent,
                // Whatever became of it, it may be sent again.
                (_, Some(again)) => again,
                _ => return Err(Refusal::broken(&chain(&failed.into_error()))),
            };
        }
    }

    async fn send_shared(
        &self,
        mut onward: Request<Upload>,
        place: &Place,
        port: u16,
        open: Counted,
    ) -> Result<Response, Refusal> {
        // It stands in the address there.
        onward.headers_mut().remove(HOST);
        let mut tries = 3;
        loop {
            let mut sender = self.pool.shared(place, port).await.map_err(Refusal::from)?;
            tries -= 1;
            let mut failed = match sender.try_send_request(onward).await {
                Ok(answer) => {
                    let (mut parts, body) = answer.into_parts();
                    headers::to_client(&mut parts.headers, false);
                    return Ok(Response::from_parts(
                        parts,
                        Body::new(Answer { body, _connection: None, _open: open }),
                    ));
                }
                Err(failed) => failed,
            };
            onward = match failed.take_message() {
                Some(unsent) if tries > 0 => unsent,
                _ => return Err(Refusal::broken(&chain(&failed.into_error()))),
            };
        }
    }

    /// What the client gets of an answer.
    fn answered(
        &self,
        mut answer: http::Response<Incoming>,
        connection: Single,
        waiting: Waiting,
    ) -> Response {
        let Waiting { opener, client, open } = waiting;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some((client, cut)) = client
        {
            let container = hyper::upgrade::on(&mut answer);
            self.pool.spawn_detached(relay(client, container, (connection, open), cut));
            let (mut parts, _) = answer.into_parts();
            headers::to_client(&mut parts.headers, true);
            return Response::from_parts(parts, Body::empty());
        }
        let (mut parts, body) = answer.into_parts();
        headers::to_client(&mut parts.headers, false);
        let ends_with = match &opener {
            // What was not uploaded stays in its way: it is good for nothing else.
            Some(opener) => {
                opener.answered();
                Some(connection.task)
            }
            None => {
                self.pool.give_back(connection);
                None
            }
        };
        parts.version = Version::HTTP_11;
        Response::from_parts(parts, Body::new(Answer { body, _connection: ends_with, _open: open }))
    }
}

/// Who waits for the answer.
struct Waiting {
    opener: Option<Opener>,
    client: Option<(OnUpgrade, Cut)>,
    open: Counted,
}

fn host<B>(request: &Request<B>) -> Option<&str> {
    let named = request.uri().authority().map(http::uri::Authority::as_str);
    named.or_else(|| request.headers().get(HOST)?.to_str().ok())
}

/// Refuses what could mean one thing here and another to a container.
fn check(request: &Request<Incoming>) -> Result<(), Refusal> {
    let bad = |text| Err(Refusal::new(StatusCode::BAD_REQUEST, "bad-request", text));
    if request.method() == Method::CONNECT {
        return Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "bad-request",
            "CONNECT is not for containers; levers9 port-forward leads to any port",
        ));
    }
    if request.headers().get_all(HOST).iter().count() > 1 {
        return bad("the request has more than one Host");
    }
    Ok(())
}

fn is_public(place: &Place) -> bool {
    place.about.exposed.as_ref().is_some_and(|exposed| exposed.public)
}

fn port_of(place: &Place, route: &Route) -> Result<u16, Refusal> {
    let ports = place.about.exposed.as_ref().map(|exposed| exposed.ports.as_slice()).unwrap_or_default();
    let asked = route.port.or_else(|| ports.first().copied());
    asked.filter(|port| ports.contains(port)).ok_or_else(Refusal::not_found)
}

/// Not what browsers call gRPC (`application/grpc-web`): that is spoken in HTTP/1.1 too.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    kind.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// What of a path names the container, and what is for it.
fn split(uri: &Uri, prefix: usize) -> Result<(&str, PathAndQuery), Refusal> {
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let (before, after) = whole.split_at_checked(prefix).unwrap_or(("", whole));
    let bad = |_| Refusal::new(StatusCode::BAD_REQUEST, "bad-request", "the path cannot be passed on");
    Ok((before, after.parse().map_err(bad)?))
}

/// An address with scheme and host, as HTTP/2 wants it.
fn absolute(uri: &Uri, path: PathAndQuery) -> Result<Uri, Refusal> {
    let authority = uri.authority().map_or("localhost", http::uri::Authority::as_str);
    let made = Uri::builder().scheme("http").authority(authority).path_and_query(path).build();
    made.map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "bad-request", "the host cannot be passed on"))
}

fn with_slash(uri: &Uri) -> Result<Response, Refusal> {
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // Without a host, so that it holds whatever name it was asked under.
    let to = format!("{}/{query}", uri.path());
    let location = HeaderValue::from_str(&to).map_err(|_| Refusal::not_found())?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

/// The same request once more; it has no body.
fn copy_of(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

fn unavailable(text: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
}

/// An error with its causes.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

/// Moves bytes between two connections that have left HTTP.
async fn relay(client: OnUpgrade, container: OnUpgrade, held: (Single, Counted), cut: Cut) {
    let both = async { tokio::try_join!(client, container) };
    let (client, container) = match both.await {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "an upgrade did not come about");
            return;
        }
    };
    let (mut client, mut container) = (TokioIo::new(client), TokioIo::new(container));
    let moved = tokio::io::copy_bidirectional_with_sizes(&mut client, &mut container, RELAYED, RELAYED).await;
    if let Err(error) = moved {
        // An end would look as if all had been said.
        cut.set();
        tracing::debug!(%error, "an upgraded connection ended early");
    }
    drop(held);
}
