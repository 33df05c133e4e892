//! Runs the built `sws` and inspects its results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Output and exit code of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(output: Output) -> Outcome {
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The single sentence of an error, without progress lines before it.
    pub(crate) fn sentence(&self) -> &str {
        let mut sentences = self.stderr.lines().filter(|line| line.starts_with("sws: "));
        let sentence = sentences.next().unwrap_or_else(|| panic!("no error in {self:?}"));
        assert_eq!(sentences.next(), None, "one sentence: {self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        sentence
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> Outcome {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// Asserts a refusal whose sentence contains these words.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, words: &[&str]) -> Outcome {
        assert_eq!(self.code, Some(code), "{self:?}");
        let sentence = self.sentence();
        for word in words {
            assert!(sentence.contains(word), "no {word:?} in {sentence:?}");
        }
        self
    }
}

pub(crate) fn command(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sws"));
    command.args(args.iter().map(|arg| arg.as_ref()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Keeps the tests out of the user's cache of checksums and learned files, and models.
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.env("SWS_MODELS", concat!(env!("CARGO_TARGET_TMPDIR"), "/models"));
    command.env("SWS_CONFIG", "").env("TERM", "xterm");
    command.env_remove("HF_HUB_CACHE").env_remove("HUGGINGFACE_HUB_CACHE").env_remove("HF_HOME");
    command.env("HF_HUB_OFFLINE", "1");
    command
}

/// Runs `sws` with these arguments.
pub(crate) fn sws(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Outcome {
    Outcome::of(command(args).output().unwrap())
}

/// All files below a directory with their bytes.
pub(crate) fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in at.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                ahead.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Asserts that two directories have the same files, without printing their bytes.
#[track_caller]
pub(crate) fn assert_same_tree(a: &Path, b: &Path) {
    let a = tree(a);
    let b = tree(b);
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in &a {
        assert!(*bytes == b[name], "{} differs", name.display());
    }
}
