//! The page of a server, in a browser where there is one.

use std::process::Command;

use sws_testing::root;

use crate::serve::Server;
use crate::sws::Outcome;

/// True if a program can be started.
fn starts(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_browser_shows_what_the_server_does() {
    let browser =
        ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|it| starts(it));
    let Some(browser) = browser.filter(|_| starts("node")) else {
        eprintln!(
            "skipped: there is no Chromium, or no Node (Debian: apt-get install chromium nodejs)"
        );
        return;
    };
    let server = Server::start(&["--ram", "min", "--api-key", "secret", "--max-tokens", "150"]);
    let url = format!("http://{}/", server.client.0);
    let script = root().join("tests/screens/live.mjs");
    let mut node = Command::new("node");
    node.arg(script).args([&url, "", "secret"]).env("BROWSER", browser);
    let outcome = Outcome::of(node.output().unwrap());
    assert!(outcome.code == Some(0) && outcome.stdout.contains("ok"), "{outcome:?}");
}
