//! What a container finds behind its doors: the gRPC and HTTP services of the
//! ports, on a stream of its worker instead of a connection. It has no route
//! of its own and needs none.
//!
//! Whatever comes through must carry the container's own token: on a machine
//! without isolation, others can reach a container's door as well.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use levers9_transport::tunnel::Duplex;
use levers9_wire::ContainerId;
use levers9_wire::v1::DoorService;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::reach::Counted;

use super::credentials;
use super::cut::Cut;
use super::front::Front;
use super::serve::{Owned, Serving, http};

/// Serves connections that containers make.
pub(crate) struct Doors {
    speak: Box<dyn Fn(ContainerId, DoorService, Duplex, SocketAddr, Counted) + Send + Sync>,
    owned: Owned,
    leave: CancellationToken,
    stop: CancellationToken,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Doors")
    }
}

impl Doors {
    /// Doors to the routers of both ports.
    pub(super) fn new<F: Front>(front: &Arc<F>, rest: Router, grpc: Router) -> Self {
        let owned = Owned::default();
        let (leave, stop) = (CancellationToken::new(), CancellationToken::new());
        let (tasks, leaving, stopping) = (owned.clone(), leave.clone(), stop.clone());
        let front = Arc::clone(front);
        let builder = http(owned.clone());
        let speak = move |container, service, io, peer, open| {
            let asked = Asked { front: Arc::clone(&front), container };
            let router = match service {
                DoorService::Grpc => {
                    grpc.clone().layer(middleware::from_fn_with_state(asked, only_grpc::<F>))
                }
                _ => rest.clone().layer(middleware::from_fn_with_state(asked, only_http::<F>)),
            };
            let serving = Serving {
                what: "door",
                http: builder.clone(),
                leave: leaving.clone(),
                stop: stopping.clone(),
                router,
                ingress: None,
            };
            tasks.spawn(async move {
                let _open = open;
                // Its end is told to the worker as what it is.
                serving.speak(io, peer, Cut::default()).await;
            });
        };
        Self { speak: Box::new(speak), owned, leave, stop }
    }

    /// Serves what a container has opened, from a worker at `peer`, and counts it.
    pub(crate) fn serve(
        &self,
        container: ContainerId,
        service: DoorService,
        io: Duplex,
        peer: SocketAddr,
        open: Counted,
    ) {
        (self.speak)(container, service, io, peer, open);
    }

    /// Asks containers to open their next door elsewhere.
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// Takes no more requests on connections there are, and cuts them off.
    pub(crate) fn close(&self) {
        self.stop.cancel();
        self.owned.kill();
    }
}

/// Whose token a request has to carry.
struct Asked<F> {
    front: Arc<F>,
    container: ContainerId,
}

impl<F> Clone for Asked<F> {
    fn clone(&self) -> Self {
        Self { front: Arc::clone(&self.front), container: self.container }
    }
}

impl<F: Front> Asked<F> {
    async fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let good = match credentials::bearer(headers) {
            Ok(Some(token)) => self.front.is_token_of(token, self.container).await,
            _ => false,
        };
        let words = "this door takes the token of its own container alone: LEVERS9_TOKEN there";
        if good { Ok(()) } else { Err(words) }
    }
}

async fn only_grpc<F: Front>(State(asked): State<Asked<F>>, request: Request, next: Next) -> Response {
    match asked.check(request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(words) => Status::unauthenticated(words).into_http(),
    }
}

async fn only_http<F: Front>(State(asked): State<Asked<F>>, request: Request, next: Next) -> Response {
    match asked.check(request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(words) => {
            let challenge = [(http::header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, format!("{words}\n")).into_response()
        }
    }
}
