//! Control groups of version 1, which count memory as the kernel does, and kill for too much of it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group, removed at the end.
#[derive(Debug)]
pub(crate) struct Group(PathBuf);

impl Group {
    /// One with a limit. Fails, and leaves nothing, where this process may not make any.
    pub(crate) fn new(name: &str, limit: u64) -> io::Result<Group> {
        let name = format!("sws-{}-{name}", std::process::id());
        let group = Group(Path::new("/sys/fs/cgroup/memory").join(name));
        std::fs::create_dir(&group.0)?;
        group.allow(limit)?;
        Ok(group)
    }

    /// Sets another limit.
    pub(crate) fn allow(&self, limit: u64) -> io::Result<()> {
        let write = |name| std::fs::write(self.0.join(name), limit.to_string());
        // Where the kernel counts swap, there shall be none. That limit is never below the other one, so
        // one of the two times is refused if they change.
        let _ = write("memory.memsw.limit_in_bytes");
        write("memory.limit_in_bytes")?;
        let _ = write("memory.memsw.limit_in_bytes");
        Ok(())
    }

    /// The most bytes that were charged to it at any time, page cache and kernel included.
    pub(crate) fn peak(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.0.join("memory.max_usage_in_bytes"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// A program that will run in it from its first instruction on.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]);
        command.arg(&self.0).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What stays in the page cache has to leave before the group can.
        let _ = std::fs::write(self.0.join("memory.force_empty"), "0");
        // Refused while a process that has ended is still being taken down.
        while std::fs::remove_dir(&self.0).is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
    }
}
