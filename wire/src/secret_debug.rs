//! `Debug` for the messages that carry a secret: everything but the secret is
//! shown. The generator leaves these messages without one (tests/generated.rs).

use std::fmt::{Debug, Formatter, Result};

use crate::v1;

const HIDDEN: &str = "…";

impl Debug for v1::Hello {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Hello")
            .field("versions", &(self.version_min..=self.version_max))
            .field("role", &self.role)
            .field("token", &HIDDEN)
            .field("build", &self.build)
            .field("worker", &self.worker)
            .field("containers", &self.inventory.len())
            .finish_non_exhaustive()
    }
}

impl Debug for v1::Welcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Welcome")
            .field("version", &self.version)
            .field("build", &self.build)
            .field("workspace_name", &self.workspace_name)
            .field("token_kind", &self.token_kind)
            .field("worker_token", &HIDDEN)
            .finish_non_exhaustive()
    }
}

impl Debug for v1::EnvVar {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("EnvVar").field("name", &self.name).field("value", &HIDDEN).finish()
    }
}

impl Debug for v1::ContainerSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("ContainerSpec")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("env", &self.env)
            .field("resources", &self.resources)
            .field("attempt", &self.attempt)
            .field("token", &HIDDEN)
            .finish_non_exhaustive()
    }
}

impl Debug for v1::CreateWorker {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("CreateWorker")
            .field("node", &self.node)
            .field("image", &self.image)
            .field("amounts", &self.amounts)
            .field("env", &self.env)
            .field("enrolment_token", &HIDDEN)
            .finish_non_exhaustive()
    }
}

macro_rules! hide {
    ($($message:ident),*) => {$(
        impl Debug for v1::$message {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )*};
}

hide!(
    AuthorizeRequest,
    AuthorizeAnswer,
    WorkerEnrollAnswer,
    WorkspaceCreateAnswer,
    TokenCreateAnswer,
    ClusterJoinAnswer,
    ClusterRotateTokenAnswer
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_shows_its_secret() {
        let token = "l9_admin_hunter2".to_owned();
        let shown = [
            format!("{:?}", v1::Hello { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::Welcome { worker_token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::AuthorizeRequest { bootstrap_secret: token.clone() }),
            format!("{:?}", v1::TokenCreateAnswer { key: token.clone(), token: None }),
            format!("{:?}", v1::WorkerEnrollAnswer { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::WorkspaceCreateAnswer { token: token.clone(), workspace: None }),
            format!("{:?}", v1::AuthorizeAnswer { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::EnvVar { name: "KEY".into(), value: token.clone().into() }),
            format!("{:?}", v1::CreateWorker { enrolment_token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::ClusterJoinAnswer { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::ClusterRotateTokenAnswer { token: token.clone(), ..Default::default() }),
            format!("{:?}", v1::ContainerSpec { token, ..Default::default() }),
        ];
        for text in shown {
            assert!(!text.contains("hunter2") && !text.contains("104, 117"), "{text}");
        }
    }
}
