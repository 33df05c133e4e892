//! Control groups of version 1, which count memory as the kernel does, and kill above a limit.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group, removed on drop.
#[derive(Debug)]
pub struct Group(PathBuf);

impl Group {
    /// Creates a group with a limit. Fails, and leaves nothing behind, if this process may not
    /// create groups.
    pub fn new(name: &str, limit: u64) -> io::Result<Group> {
        let name = format!("sws-{}-{name}", std::process::id());
        let group = Group(Path::new("/sys/fs/cgroup/memory").join(name));
        std::fs::create_dir(&group.0)?;
        group.allow(limit)?;
        Ok(group)
    }

    /// Sets another limit.
    pub fn allow(&self, limit: u64) -> io::Result<()> {
        let write = |name| std::fs::write(self.0.join(name), limit.to_string());
        // Forbids swap on kernels that count it. The limit with swap must never be below the other
        // one, so one of the two writes is refused when the limit changes.
        let _ = write("memory.memsw.limit_in_bytes");
        write("memory.limit_in_bytes")?;
        let _ = write("memory.memsw.limit_in_bytes");
        Ok(())
    }

    /// The highest number of bytes charged at any time, page cache and kernel included.
    pub fn peak(&self) -> io::Result<u64> {
        let text = std::fs::read_to_string(self.0.join("memory.max_usage_in_bytes"))?;
        text.trim().parse().map_err(io::Error::other)
    }

    /// A command that runs in the group from its first instruction.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]);
        command.arg(&self.0).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group's page cache has to be emptied before the group can be removed.
        let _ = std::fs::write(self.0.join("memory.force_empty"), "0");
        // Refused while a process that has ended is still being torn down.
        while std::fs::remove_dir(&self.0).is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
    }
}
