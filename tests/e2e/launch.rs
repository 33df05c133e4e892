//! `sws launch`: programs get the settings of a running server.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::json;

use crate::serve::Server;
use crate::sws::{Outcome, command, sws};

#[test]
fn programs_are_started_with_the_settings_of_the_server() {
    let server = Server::start(&["--resident", "--api-key", "secret"]);
    let url = format!("http://{}/v1/", server.client.0);
    // Stands for each program, and says what it was given.
    let temp = tempfile::tempdir().unwrap();
    for name in ["claude", "codex", "aider"] {
        let path = temp.path().join(name);
        std::fs::write(&path, "#!/bin/sh\nenv\nprintf 'argument %s\\n' \"$@\"\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", temp.path().display(), std::env::var("PATH").unwrap());
    let launch = |words: &[&str]| {
        let mut command = command(&[&"launch"]);
        command.args(words).args(["--url", &url, "--force"]);
        command.env("PATH", &path).env("SWS_API_KEY", "secret").env("ANTHROPIC_API_KEY", "theirs");
        command
    };
    let address = &server.client.0;
    let model = "tales-moe";
    for (client, lines) in [
        (
            "claude",
            &[
                format!("ANTHROPIC_BASE_URL=http://{address}"),
                "ANTHROPIC_AUTH_TOKEN=secret".to_owned(),
                format!("ANTHROPIC_DEFAULT_HAIKU_MODEL={model}"),
                "CLAUDE_CODE_ATTRIBUTION_HEADER=0".to_owned(),
            ][..],
        ),
        (
            "codex",
            &[
                format!("argument model=\"{model}\""),
                format!(
                    "argument model_providers.sws={{name=\"sws\",base_url=\"http://{address}/v1\",env_key=\"SWS_API_KEY\",wire_api=\"responses\",stream_idle_timeout_ms=3600000}}"
                ),
                "argument model_context_window=4096".to_owned(),
            ],
        ),
        (
            "aider",
            &[format!("OPENAI_API_BASE=http://{address}/v1"), format!("argument openai/{model}")],
        ),
    ] {
        let run = Outcome::of(launch(&[client]).output().unwrap()).succeeded();
        let found: Vec<&str> = run.stdout.lines().collect();
        for line in lines {
            assert!(found.contains(&line.as_str()), "no {line} in {found:#?}");
        }
        assert!(!run.stdout.contains("theirs") || client != "claude", "{run:?}");
    }

    // The printed lines do the same in a shell, with arguments of the program.
    let print = launch(&["claude", "--print"]).args(["--", "-p", "it's"]).output().unwrap();
    let print = Outcome::of(print).succeeded().stdout;
    let shell = Command::new("sh").args(["-c", &print]).env("PATH", &path).output().unwrap();
    let shell = Outcome::of(shell).succeeded();
    assert!(shell.stdout.ends_with("argument -p\nargument it's\n"), "{shell:?}");
    assert!(shell.stdout.contains(&format!("ANTHROPIC_MODEL={model}\n")), "{shell:?}");

    let wrong = launch(&["codex"]).env("SWS_API_KEY", "wrong").output().unwrap();
    Outcome::of(wrong).refused(2, &["the key is wrong", "SWS_API_KEY"]);
    let absent = launch(&["codex"]).env("PATH", "/proc/nonesuch").output().unwrap();
    Outcome::of(absent).refused(2, &["`codex` is not installed", "--print"]);
}

/// The server of a model without a template, which has 4096 positions.
#[test]
fn a_server_that_a_program_cannot_use_is_refused_before_it_is_started() {
    let server = Server::start(&["--resident"]);
    let url = format!("http://{}", server.client.0);
    let models = server.client.get("/v1/models");
    assert_eq!(models["data"][0]["capabilities"], json!(["completion"]));
    for (program, words) in [
        ("claude", &["`claude` holds conversations", "`tales-moe`", "sws serve ", "--force"][..]),
        ("codex", &["`codex` holds conversations", "`tales-moe`", "sws serve ", "--force"]),
        ("aider", &["`aider` holds conversations", "`tales-moe`", "sws serve ", "--force"]),
    ] {
        let mut launch = command(&[&"launch", &program, &"--url", &url]);
        // A program that was started would not be found.
        launch.env("PATH", "/proc/nonesuch");
        let refused = Outcome::of(launch.output().unwrap());
        assert!(!refused.stderr.contains("not installed"), "{refused:?}");
        refused.refused(2, words);
        let forced = Outcome::of(launch.arg("--force").output().unwrap());
        forced.refused(2, &["not installed"]);
        let printed = sws(&[&"launch", &program, &"--url", &url, &"--print"]).succeeded();
        assert!(
            printed.stdout.contains(program) && printed.stderr.contains(words[0]),
            "{printed:?}"
        );
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    for (url, words) in [
        (
            "http://127.0.0.1:1",
            &["cannot ask http://127.0.0.1:1 for its model", "sws serve MODEL"][..],
        ),
        ("127.0.0.1:1", &["--url 127.0.0.1:1", "http://"]),
        ("ftp://here", &["only http and https"]),
        ("https://here", &["--name"]),
        ("http://a\nb", &["--url has a control character"]),
    ] {
        sws(&[&"launch", &"claude", &"--url", &url]).refused(2, words);
    }
}
