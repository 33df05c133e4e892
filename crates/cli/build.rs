//! Tells the program the commit that it is built from: `SWS_COMMIT`, or else what git says.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=SWS_COMMIT");
    let commit = std::env::var("SWS_COMMIT").ok().or_else(|| {
        let git = |words: &[&str]| {
            let output = Command::new("git").args(words).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
        };
        // Written at each commit, and when another one is checked out.
        let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
        println!("cargo:rerun-if-changed={log}");
        git(&["rev-parse", "--short=9", "HEAD"])
    });
    println!("cargo:rustc-env=SWS_COMMIT={}", commit.unwrap_or_default());
}
