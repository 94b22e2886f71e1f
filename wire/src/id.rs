//! Identifiers: UUIDv7, 16 bytes on the wire, text at the edges, one Rust
//! type for each thing they name. Identity is always one of these, never a
//! name a person chose.

use std::fmt;
use std::str::FromStr;

use rand::RngCore;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Why some bytes or text are not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    /// The wire carried another number of bytes than 16.
    #[error("an id has 16 bytes, not {0}")]
    Length(usize),
    /// The text is not a UUID.
    #[error("{0:?} is not an id; ids look like 019a0c1e-7b3c-7d11-8a20-5f3c1d2e4b6a")]
    Text(String),
}

/// A new UUIDv7 from a time in Unix milliseconds and a random source.
fn v7(unix_ms: u64, rng: &mut dyn RngCore) -> Uuid {
    let mut random = [0u8; 10];
    rng.fill_bytes(&mut random);
    uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(#[serde(with = "text")] Uuid);

        impl $name {
            /// A new identifier from a time in Unix milliseconds and randomness.
            #[must_use]
            pub fn new(unix_ms: u64, rng: &mut dyn RngCore) -> Self {
                Self(v7(unix_ms, rng))
            }

            /// A new identifier from the clock and the thread's random source.
            #[must_use]
            pub fn generate() -> Self {
                Self::new(crate::clock::unix_millis(), &mut rand::rng())
            }

            /// The identifier with these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// The 16 bytes as a message field holds them.
            #[must_use]
            pub fn to_wire(self) -> Vec<u8> {
                self.0.as_bytes().to_vec()
            }

            /// The 16 bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Reads a message field. An empty field is `None`.
            ///
            /// # Errors
            /// When the field holds anything but 0 or 16 bytes.
            pub fn from_wire(bytes: &[u8]) -> Result<Option<Self>, BadId> {
                if bytes.is_empty() { Ok(None) } else { Self::try_from(bytes).map(Some) }
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = BadId;
            fn try_from(bytes: &[u8]) -> Result<Self, BadId> {
                let bytes: [u8; 16] = bytes.try_into().map_err(|_| BadId::Length(bytes.len()))?;
                Ok(Self(Uuid::from_bytes(bytes)))
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                Uuid::try_parse(text.trim()).map(Self).map_err(|_| BadId::Text(text.chars().take(64).collect()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id!(/** An authenticated peer and all it has open. */ SessionId);
id!(/** One start of one process. */ InstanceId);
id!(/** One request, however often it is sent. */ RequestId);
id!(/** A tenant. */ WorkspaceId);
id!(/** A Kubernetes cluster that was attached. */ ClusterId);
id!(/** A machine that runs containers. */ WorkerId);
id!(/** What a worker runs. */ ContainerId);
id!(/** One call of a stub. */ TaskId);
id!(/** A registered function, command or box with its resources. */ StubId);
id!(/** A credential, by its row and not its secret. */ TokenId);

/// Which incarnation of a container; it changes only when another attempt is
/// placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// Which try of a task, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptNumber(pub u32);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AttemptNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

mod text {
    use serde::{Deserialize, Deserializer, Serializer};
    use uuid::Uuid;

    pub(super) fn serialize<S: Serializer>(id: &Uuid, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
        let text = String::deserialize(from)?;
        Uuid::try_parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn same_time_and_seed_give_the_same_id_and_later_ids_sort_after() {
        let make = |ms| TaskId::new(ms, &mut rand::rngs::SmallRng::seed_from_u64(7));
        assert_eq!(make(1_000), make(1_000));
        assert!(make(1_000) < make(1_001));
    }

    #[test]
    fn round_trips_through_bytes_and_text() {
        let id = TaskId::generate();
        assert_eq!(TaskId::try_from(id.to_wire().as_slice()), Ok(id));
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn refuses_other_lengths_and_text() {
        assert_eq!(TaskId::try_from(&[0u8; 15][..]), Err(BadId::Length(15)));
        assert_eq!(TaskId::from_wire(&[]), Ok(None));
        assert!("019a".parse::<TaskId>().is_err());
    }
}
