//! Port 1993: the gRPC door of the Python SDK. Authorize is answered, every
//! other method is UNIMPLEMENTED. The messages are written here field by
//! field; the SDK's own are the reference.
//!
//! The SDK shows people a status's code but rarely its words, and words only
//! for `ok = false`. So a refusal that somebody must read is `ok = false`; a
//! token that is no good is UNAUTHENTICATED, as the SDK expects.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::middleware;
use axum::response::Response;
use axum::routing::post;
use levers9_wire::name::printable;
use tonic::Status;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

use super::front::{Asked, AuthorizeError, Authorized, Front};
use super::serve::Peer;
use super::{access, credentials};

/// Everything on the port.
pub(super) fn router<F: Front>(front: Arc<F>) -> Router {
    Router::new()
        .route("/controlplane.ControlPlaneService/Authorize", post(authorize::<F>))
        .fallback(unimplemented)
        .method_not_allowed_fallback(unimplemented)
        .layer(middleware::from_fn_with_state("grpc", access::log))
        .with_state(front)
}

/// `controlplane.AuthorizeRequest`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct AuthorizeRequest {}

/// `controlplane.AuthorizeResponse`
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct AuthorizeResponse {
    #[prost(bool, tag = "1")]
    ok: bool,
    #[prost(string, tag = "2")]
    workspace_id: String,
    #[prost(string, tag = "3")]
    new_token: String,
    #[prost(string, tag = "4")]
    error_msg: String,
}

async fn authorize<F: Front>(
    State(front): State<Arc<F>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Response {
    let method = Authorize { front, asked: credentials::asked(request.headers(), peer) };
    let mut grpc = Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    match tokio::time::timeout(UNARY_TIMEOUT, grpc.unary(method, request)).await {
        Ok(response) => response.map(Body::new),
        Err(_) => {
            Status::deadline_exceeded(format!("no answer within {} s", UNARY_TIMEOUT.as_secs())).into_http()
        }
    }
}

struct Authorize<F> {
    front: Arc<F>,
    asked: Result<Asked, AuthorizeError>,
}

impl<F: Front> UnaryService<AuthorizeRequest> for Authorize<F> {
    type Response = AuthorizeResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<AuthorizeResponse>, Status>> + Send>>;

    fn call(&mut self, _: tonic::Request<AuthorizeRequest>) -> Self::Future {
        let (front, asked) = (Arc::clone(&self.front), self.asked.clone());
        Box::pin(async move {
            let authorized = match asked {
                Ok(asked) => front.authorize(asked).await,
                Err(error) => Err(error),
            };
            answer(authorized).map(tonic::Response::new)
        })
    }
}

fn answer(authorized: Result<Authorized, AuthorizeError>) -> Result<AuthorizeResponse, Status> {
    match authorized {
        Ok(Authorized { workspace, new_token, .. }) => Ok(AuthorizeResponse {
            ok: true,
            workspace_id: workspace.to_string(),
            new_token: new_token.map_or_else(String::new, |token| token.expose().to_owned()),
            error_msg: String::new(),
        }),
        Err(AuthorizeError::Unauthenticated(words)) => Err(Status::unauthenticated(words)),
        Err(AuthorizeError::Unavailable(words)) => Err(Status::unavailable(words)),
        Err(AuthorizeError::Denied(words) | AuthorizeError::TooMany(words)) => {
            Ok(AuthorizeResponse { error_msg: words, ..AuthorizeResponse::default() })
        }
    }
}

async fn unimplemented(request: Request) -> Response {
    let path = printable(request.uri().path().trim_start_matches('/'), 200);
    Status::unimplemented(format!("{path} is not built yet")).into_http()
}

/// As much as the SDK sends and accepts.
const MAX_MESSAGE: usize = 16 << 20;
const UNARY_TIMEOUT: Duration = Duration::from_secs(30);
