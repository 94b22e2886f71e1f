//! The controlplanes on one database.

use std::time::Duration;

use levers9_wire::InstanceId;

use crate::fixtures::{Place, T0};

pub(crate) async fn controlplanes_know_of_each_other_while_they_say_so(place: Place) {
    let store = place.open().await;
    let [old, new, third] = [(); 3].map(|()| InstanceId::generate());
    assert!(store.withdraw_replica(old, T0).await.unwrap().is_empty(), "it is alone");
    store.announce_replica(old, "10.0.0.1:443", 60_000, T0).await.unwrap();
    store.announce_replica(new, "10.0.0.2:443", 60_000, T0).await.unwrap();
    store.announce_replica(new, "10.0.0.2:443", 60_000, T0 + 1).await.unwrap();
    assert_eq!(store.withdraw_replica(old, T0).await.unwrap(), ["10.0.0.2:443"]);
    assert!(store.withdraw_replica(new, T0).await.unwrap().is_empty());
    // One that was killed and started again is one.
    store.announce_replica(old, "10.0.0.1:443", 60_000, T0).await.unwrap();
    store.announce_replica(new, "10.0.0.1:443", 60_000, T0).await.unwrap();
    assert!(store.withdraw_replica(new, T0).await.unwrap().is_empty());
    // Two that do not know where they are, are two.
    store.announce_replica(old, "", 60_000, T0).await.unwrap();
    store.announce_replica(new, "", 60_000, T0).await.unwrap();
    assert_eq!(store.withdraw_replica(new, T0).await.unwrap(), [""]);
    store.withdraw_replica(old, T0).await.unwrap();
    // One that says nothing for a while is gone.
    store.announce_replica(third, "10.0.0.3:443", 20, T0).await.unwrap();
    let forgotten = async {
        while !store.withdraw_replica(new, T0 + 21).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), forgotten).await.expect("it is forgotten");
}
