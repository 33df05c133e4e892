//! A control group for a child.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};

use anyhow::{Context, Result};

/// Where groups that limit memory are (version 1).
const ROOT: &str = "/sys/fs/cgroup/memory";

/// A group whose processes together get so much memory, what they have in the page cache included.
pub(super) struct Group(PathBuf);

impl Group {
    /// None where such groups cannot be made.
    pub(super) fn new(limit: u64) -> Option<Group> {
        let group = Group(Path::new(ROOT).join(format!("sws-bench-{}", process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        // Where the kernel counts swap, there shall be none.
        let _ = fs::write(group.0.join("memory.memsw.limit_in_bytes"), limit.to_string());
        Some(group)
    }

    /// The most memory that its processes had.
    pub(super) fn peak(&self) -> Option<u64> {
        fs::read_to_string(self.0.join("memory.max_usage_in_bytes")).ok()?.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What stays in the page cache has to leave before the group can.
        let _ = fs::write(self.0.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs `program` to its end, within `group` if there is one.
pub(super) fn output<I: AsRef<OsStr>>(
    program: &Path,
    arguments: impl IntoIterator<Item = I>,
    group: Option<&Group>,
) -> Result<Output> {
    let mut command = match group {
        Some(group) => {
            // The shell enters the group, then becomes the program.
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&group.0);
            command.arg(program);
            command
        }
        None => Command::new(program),
    };
    let output = command.args(arguments).stdin(process::Stdio::null()).output();
    output.with_context(|| format!("cannot start `{}`", program.display()))
}
