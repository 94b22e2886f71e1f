//! What a container dials of the controlplane.

use std::net::TcpStream;
use std::time::Duration;

use crate::helper::{self, BE};
use crate::world::*;
use bytes::Bytes;
use levers9_transport::tunnel::Raw;
use levers9_wire::v1::{DoorService, StopReason};

#[tokio::test]
async fn a_container_reaches_the_controlplane_through_its_door() {
    for namespaces in [true, false] {
        let mut world = World::new(namespaces).await;
        let mut container = world.run_with(&helper::command(), &[(BE, "client")], "the token").await;
        let expected = [(DoorService::Http, "GET / HTTP/1.1\r\n"), (DoorService::Grpc, "PRI * HTTP/2.0\r\n")];
        for (number, (service, greeting)) in expected.into_iter().enumerate() {
            let (door, stream) = within("a door", world.doors.recv()).await.expect("open");
            assert_eq!((door.container, door.generation.0, door.service), (container.id, 1, service));
            let Raw { mut send, first, mut recv } = Raw::of(stream).await.expect("whole");
            let mut said = first.to_vec();
            while let Some(bytes) = within("bytes", recv.read(1000)).await.expect("whole") {
                said.extend_from_slice(&bytes);
            }
            assert_eq!(String::from_utf8_lossy(&said), format!("{greeting}the token"));
            send.write_all(Bytes::from_static(b"welcome")).await.expect("sent");
            send.finish();
            assert_eq!(world.written(&format!("back{number}")).await, "welcome");
        }
        let (_, stream) = within("a door", world.doors.recv()).await.expect("open");
        let mut held = Raw::of(stream).await.expect("whole");
        let mut said = held.first.to_vec();
        while said.len() < 3 {
            said.extend(within("bytes", held.recv.read(100)).await.expect("whole").expect("more"));
        }
        assert_eq!(said, b"GET");
        let port: u16 = world.written("port").await.parse().expect("a port");
        // Others of the machine find it, too: that is why it demands a token.
        drop(TcpStream::connect(("127.0.0.1", port)).expect("it listens"));
        container.stop(StopReason::Cancelled).await;
        container.ended().await;
        let cut = async { while let Ok(Some(_)) = held.recv.read(100).await {} };
        within_time("the cut", Duration::from_secs(2), cut).await;
        until("nobody listens", || TcpStream::connect(("127.0.0.1", port)).is_err()).await;
        std::fs::remove_file(world.work.join("port")).expect("removed");
    }
}

#[tokio::test]
async fn what_the_user_sets_wins_and_without_a_token_there_is_no_door() {
    let world = World::new(true).await;
    let variables =
        "env | grep -E '^LEVERS9_(TOKEN|CONTROLPLANE)' | sort > vars; echo >> vars; exec sleep 1000";
    let _own = world.run_with(variables, &[("LEVERS9_TOKEN", "mine")], "the token").await;
    let text = world.written("vars").await;
    assert!(text.ends_with("LEVERS9_TOKEN=mine"), "{text}");
    assert_eq!(text.lines().count(), 5);
    std::fs::remove_file(world.work.join("vars")).expect("removed");
    let _none = world.run(variables).await;
    assert_eq!(world.written("vars").await, "");
}
