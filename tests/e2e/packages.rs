//! `packaging/tree`: what every package, archive and image lays out, moved away from the project.

use std::path::Path;
use std::process::Command;

use sws_testing::root;

use crate::sws::{Outcome, command, tree};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn an_installation_has_all_that_the_program_needs() {
    let temp = tempfile::tempdir().unwrap();
    let prefix = temp.path().join("usr");
    let script = root().join("packaging/tree");
    let laid_out =
        Command::new(script).arg(env!("CARGO_BIN_EXE_sws")).arg(&prefix).output().unwrap();
    assert!(laid_out.status.success(), "{laid_out:?}");

    // The bundled model is found from anywhere, and is the installed one.
    let tale = |program: &Path| {
        let like = command(&[]);
        let mut command = Command::new(program);
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["run", "--seed", "1", "-n", "8"]).current_dir(temp.path());
        Outcome::of(command.output().unwrap()).succeeded()
    };
    let installed = tale(&prefix.join("bin/sws"));
    assert!(installed.stderr.contains("usr/share/sws/shards/tales-moe`"), "{installed:?}");
    assert_eq!(installed.stdout, tale(Path::new(env!("CARGO_BIN_EXE_sws"))).stdout);

    let share = prefix.join("share");
    for page in ["sws.1", "sws-run.1", "sws-chat.1", "sws-pull.1"] {
        assert!(read(&share.join("man/man1").join(page)).starts_with(".ie"), "{page}");
    }
    for file in [
        "bash-completion/completions/sws",
        "zsh/site-functions/_sws",
        "fish/vendor_completions.d/sws.fish",
    ] {
        let script = read(&share.join(file));
        assert!(script.contains("sws"), "{file}");
        assert!(!script.contains(env!("CARGO_BIN_EXE_sws")), "{file} names the built program");
    }
    let documents: Vec<_> = tree(&share.join("doc/sws")).into_keys().collect();
    for file in ["LICENSE-MIT", "docs/supported.md", "docs/serve.md", "docs/cli.md"] {
        assert!(documents.contains(&file.into()), "{file}: {documents:?}");
    }
    assert!(read(&prefix.join("lib/systemd/system/sws.service")).contains("Type=notify"));
}

/// The check of a release passes for this program, and fails beside one that tells another tale.
#[test]
fn a_program_is_tried_before_it_is_packed() {
    let smoke = |other: Option<&Path>| {
        let mut command = Command::new(root().join("packaging/smoke"));
        command.arg(env!("CARGO_BIN_EXE_sws")).args(other);
        Outcome::of(command.output().unwrap())
    };
    let passed = smoke(None).succeeded();
    for words in ["sws 0.", "bits  ", "every bit agrees in all 24 steps", "sha256"] {
        assert!(passed.stdout.contains(words), "{words}: {passed:?}");
    }
    let temp = tempfile::tempdir().unwrap();
    let other = temp.path().join("other");
    let script = format!(
        "#!/bin/sh\nfor word; do shift; [ \"$word\" = 7 ] && word=8; set -- \"$@\" \"$word\"; done\n\
         exec {} \"$@\"\n",
        env!("CARGO_BIN_EXE_sws")
    );
    std::fs::write(&other, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&other, executable).unwrap();
    let failed = smoke(Some(&other));
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stdout.contains("differ"), "{failed:?}");
}
