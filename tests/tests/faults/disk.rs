//! The controlplane's disk is full for a while.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use levers9_tests::{Backend, Output, Setup, World, wait};

use crate::support::{LONG, SOON, assert_counts, content, last_number};

/// A small file system in memory, for root; unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Self {
        let folder = tempfile::Builder::new().prefix("levers9-disk-").tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).expect("a folder");
        levers9_tests::watchdog::watch_folder(folder.path());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m,mode=700", "levers9-test"]).arg(&disk);
        assert!(mount.status().expect("mount starts").success(), "root cannot mount a tmpfs");
        Self(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("disk")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _best_effort = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

/// Writes until nothing more goes in.
fn fill(file: &Path) {
    use std::io::Write as _;
    let mut filler = std::fs::File::create(file).expect("the filler is made");
    for block in [64 * 1024, 4096, 1] {
        while filler.write_all(&vec![0; block]).is_ok() {}
    }
}

/// A job goes on through `harm`, which makes the data folder take nothing,
/// until `heal`.
fn goes_on(world: &World, harm: impl FnOnce(&Path), heal: impl FnOnce(&Path)) {
    const COUNT: u32 = 400;
    let _worker = world.worker("one");
    let beat = world.home.path().join("beat");
    // Lines of a KiB: the log must have something to write.
    let script = format!(
        "i=0; pad=$(head -c 1000 /dev/zero | tr '\\0' .); while [ $i -lt {COUNT} ]; do i=$((i+1)); \
         echo $i $pad; echo $i > {}; sleep 0.05; done",
        beat.display()
    );
    let numbers = |text: &str| -> String {
        text.lines().map(|line| format!("{}\n", line.split(' ').next().unwrap_or_default())).collect()
    };
    let id = world.submit(&script);
    let mut logs = world.cli_spawn(&["logs", "-f", &id]);
    logs.wait_text("numbers", SOON, |text| last_number(&numbers(text)) >= 20);
    harm(world.controlplane.data());
    let before = last_number(&content(&beat));
    wait::until("the job goes on with a full disk", LONG, || {
        let now = last_number(&content(&beat));
        if now >= before + 200 { Ok(()) } else { Err(format!("{now} after {before}")) }
    });
    let log = world.controlplane.log();
    let trouble = log.lines().filter(|line| line.contains("cannot be stored")).count();
    assert!(trouble > 0, "the disk was full indeed, and the operator is told: {log}");
    assert!(trouble < 8, "the operator is told when it changes, not all the time: {log}");
    heal(world.controlplane.data());
    world.wait_status(&id, "COMPLETE", LONG);
    assert_eq!(logs.wait(LONG), 0, "{}", logs.shown());
    assert_counts(&numbers(&logs.text()), COUNT, "logs -f");
    assert_counts(&numbers(&world.cli(&["logs", &id]).ok().text()), COUNT, "logs");
    assert_eq!(world.cli(&["run", "--", "echo", "hi"]).ok().text(), "hi\n");
}

/// Submits jobs until one is refused: what the database has room for already
/// may still be taken. `None` when none is.
fn refused(world: &World) -> Option<Output> {
    let large = format!("X={}", "x".repeat(40_000));
    let submit = |_| world.cli(&["run", "--detach", "--env", &large, "--", "true"]);
    (0..40).map(submit).find(|out| out.code != 0)
}

/// A test on a disk that can be filled, where one can be had.
fn with_a_disk(test: impl FnOnce(&World, Box<dyn FnOnce(&Path)>, Box<dyn FnOnce(&Path)>)) {
    if nix::unistd::geteuid().is_root() {
        let small = Small::mount();
        let setup = Setup { data: Some(small.path().join("data")), ..Setup::default() };
        let world = World::start_with(Backend::Sqlite, setup);
        let filler = small.path().join("filler");
        let gone = filler.clone();
        let harm = Box::new(move |_: &Path| fill(&filler));
        test(&world, harm, Box::new(move |_| std::fs::remove_file(gone).expect("the filler goes")));
        return;
    }
    // Without root there is no small disk: a folder that takes no file is near it.
    let world = World::start(Backend::Sqlite);
    let set = |mode: u32| {
        Box::new(move |data: &Path| {
            std::fs::set_permissions(data.join("logs"), Permissions::from_mode(mode)).expect("chmod");
        })
    };
    test(&world, set(0o500), set(0o700));
}

#[test]
fn a_full_disk_costs_nothing_but_time() {
    with_a_disk(|world, harm, heal| goes_on(world, harm, heal));
}

#[test]
fn a_job_refused_on_a_full_disk_says_why() {
    with_a_disk(|world, harm, _heal| {
        harm(world.controlplane.data());
        if let Some(out) = refused(world) {
            assert_eq!(out.code, 125, "{out:?}");
            assert!(out.stderr.contains("full"), "{}", out.stderr);
            let log = world.controlplane.log();
            assert!(log.contains("full"), "the operator is told as well: {log}");
        }
    });
}

#[test]
fn health_tells_of_a_full_disk() {
    with_a_disk(|world, harm, heal| {
        let _worker = world.worker("one");
        assert_eq!(world.get("/healthz").0, 200);
        harm(world.controlplane.data());
        // The log of a job that runs is what finds it out.
        let script = "while :; do head -c 3000 /dev/zero; sleep 0.1; done";
        let _talk = world.cli_spawn(&["run", "--", "sh", "-c", script]);
        wait::until("/healthz tells", SOON, || match world.get("/healthz") {
            (200, body) => Err(body),
            (_, body) if body.contains("left in the data folder") => Ok(()),
            (code, body) => Err(format!("{code} {body}")),
        });
        heal(world.controlplane.data());
        wait::until("/healthz is well again", Duration::from_secs(30), || match world.get("/healthz") {
            (200, _) => Ok(()),
            (code, body) => Err(format!("{code} {body}")),
        });
    });
}

#[test]
fn after_a_full_disk_all_is_as_before() {
    with_a_disk(|world, harm, heal| {
        let _worker = world.worker("one");
        harm(world.controlplane.data());
        for _ in 0..5 {
            let _out = refused(world);
        }
        heal(world.controlplane.data());
        assert_eq!(world.cli(&["run", "--", "echo", "first"]).ok().text(), "first\n");
        // Beside each other, so that every connection to the database is used.
        let mut many: Vec<_> = (0..20).map(|_| world.cli_spawn(&["run", "--", "echo", "hi"])).collect();
        for run in &mut many {
            assert_eq!((run.wait(LONG), run.text().as_str()), (0, "hi\n"), "{}", run.shown());
        }
    });
}
