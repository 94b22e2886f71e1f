//! The committed generated code is what the .proto files say. Run with
//! `LEVERS9_REGENERATE=1` to write it anew.

#![cfg(test)]

use std::path::Path;

#[test]
fn generated_code_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempdir();
    let descriptors = protox::compile(["levers9/wire/v1/wire.proto"], [root.join("proto")])
        .expect("the .proto files compile");
    prost_build::Config::new()
        .bytes([
            ".levers9.wire.v1.LogRecord.data",
            ".levers9.wire.v1.FollowLine.data",
            ".levers9.wire.v1.ExecInput.stdin",
            ".levers9.wire.v1.ExecOutput.stdout",
            ".levers9.wire.v1.ExecOutput.stderr",
        ])
        // These carry secrets; their Debug is written by hand in src/secret_debug.rs.
        .skip_debug([
            ".levers9.wire.v1.Hello",
            ".levers9.wire.v1.Welcome",
            ".levers9.wire.v1.AuthorizeRequest",
            ".levers9.wire.v1.AuthorizeAnswer",
            ".levers9.wire.v1.WorkerEnrollAnswer",
            ".levers9.wire.v1.WorkspaceCreateAnswer",
            ".levers9.wire.v1.TokenCreateAnswer",
            ".levers9.wire.v1.EnvVar",
            ".levers9.wire.v1.ContainerSpec",
            ".levers9.wire.v1.CreateWorker",
            ".levers9.wire.v1.ClusterJoinAnswer",
            ".levers9.wire.v1.ClusterRotateTokenAnswer",
        ])
        .format(true)
        .out_dir(&out)
        .compile_fds(descriptors)
        .expect("code is generated");
    let fresh = std::fs::read_to_string(out.join("levers9.wire.v1.rs")).expect("one file is generated");
    let committed = root.join("src/gen/levers9.wire.v1.rs");
    if std::env::var_os("LEVERS9_REGENERATE").is_some() {
        std::fs::write(&committed, &fresh).expect("the file can be written");
    }
    let held = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        held == fresh,
        "wire/src/gen is stale: run LEVERS9_REGENERATE=1 cargo test -p levers9-wire generated"
    );
}

fn tempdir() -> std::path::PathBuf {
    let dir =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("gen-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the output");
    dir
}
