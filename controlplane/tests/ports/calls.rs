//! Port 1993: calls by a gRPC client that is not ours.

use std::net::SocketAddr;

use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataKey;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::desk::{WORKSPACE, serve};

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Anything {
    #[prost(bytes = "vec", tag = "1")]
    content: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AuthorizeResponse {
    #[prost(bool, tag = "1")]
    pub(crate) ok: bool,
    #[prost(string, tag = "2")]
    workspace_id: String,
    #[prost(string, tag = "3")]
    new_token: String,
    #[prost(string, tag = "4")]
    error_msg: String,
}

async fn call(
    at: SocketAddr,
    path: &'static str,
    metadata: &[(&'static str, &str)],
    content: Vec<u8>,
) -> Result<AuthorizeResponse, Status> {
    let channel = Endpoint::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let mut request = Request::new(Anything { content });
    for (name, value) in metadata {
        request.metadata_mut().insert(AsciiMetadataKey::from_static(name), value.parse().unwrap());
    }
    let codec = ProstCodec::<Anything, AuthorizeResponse>::default();
    grpc.unary(request, PathAndQuery::from_static(path), codec).await.map(tonic::Response::into_inner)
}

/// Calls Authorize.
pub(crate) async fn authorize(
    at: SocketAddr,
    metadata: &[(&'static str, &str)],
) -> Result<AuthorizeResponse, Status> {
    call(at, "/controlplane.ControlPlaneService/Authorize", metadata, Vec::new()).await
}

#[tokio::test]
async fn a_good_token_and_the_bootstrap_secret_are_let_in() {
    let served = serve().await;
    let answer = authorize(served.grpc, &[("authorization", "Bearer good")]).await.unwrap();
    let expected = AuthorizeResponse { ok: true, workspace_id: WORKSPACE.to_owned(), ..Default::default() };
    assert_eq!(answer, expected);
    let answer = authorize(served.grpc, &[("x-levers9-bootstrap-secret", "hunter2")]).await.unwrap();
    assert_eq!(answer, AuthorizeResponse { new_token: "l9_admin_new".to_owned(), ..expected });
}

#[tokio::test]
async fn refusals_are_told_the_way_the_sdk_shows_them() {
    let served = serve().await;
    for metadata in [&[][..], &[("authorization", "Bearer no")]] {
        let status = authorize(served.grpc, metadata).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "the token is not valid"));
    }
    let status = authorize(served.grpc, &[("authorization", "Bearer down")]).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the database is unavailable"));
    for (token, words) in [("Bearer denied", "a workspace exists already"), ("Bearer many", "wait a minute")]
    {
        let answer = authorize(served.grpc, &[("authorization", token)]).await.unwrap();
        assert_eq!(answer, AuthorizeResponse { error_msg: words.to_owned(), ..Default::default() });
    }
}

#[tokio::test]
async fn other_methods_are_unimplemented() {
    let served = serve().await;
    let path = "/controlplane.ControlPlaneService/ListTokens";
    let status = call(served.grpc, path, &[("authorization", "Bearer good")], Vec::new()).await.unwrap_err();
    let message = "controlplane.ControlPlaneService/ListTokens is not built yet";
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, message));
}

#[tokio::test]
async fn messages_up_to_16_mib_are_taken() {
    let served = serve().await;
    let path = "/controlplane.ControlPlaneService/Authorize";
    let good = [("authorization", "Bearer good")];
    // The unknown field is skipped; tag and length take five bytes.
    assert!(call(served.grpc, path, &good, vec![0; (16 << 20) - 5]).await.unwrap().ok);
    let status = call(served.grpc, path, &good, vec![0; 16 << 20]).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
}
