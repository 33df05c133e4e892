//! Control groups, which count memory as the kernel does and kill for too much. A model that does not
//! fit into its group is refused before that.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::sws::Outcome;

/// A control group of version 1, removed at the end.
pub(crate) struct Group(PathBuf);

impl Group {
    /// None, with a line that says so, where this process may not make one.
    pub(crate) fn new(name: &str, limit: u64) -> Option<Group> {
        let name = format!("sws-test-{}-{name}", std::process::id());
        let dir = Path::new("/sys/fs/cgroup/memory").join(name);
        let made = std::fs::create_dir(&dir)
            .and_then(|()| std::fs::write(dir.join("memory.limit_in_bytes"), limit.to_string()));
        if let Err(error) = made {
            let _ = std::fs::remove_dir(&dir);
            eprintln!("skipped: no control group can be made here ({error})");
            return None;
        }
        Some(Group(dir))
    }

    fn allow(&self, limit: u64) {
        std::fs::write(self.0.join("memory.limit_in_bytes"), limit.to_string()).unwrap();
    }

    /// The most bytes that were charged to it at any time, page cache and kernel included.
    pub(crate) fn peak(&self) -> u64 {
        let text = std::fs::read_to_string(self.0.join("memory.max_usage_in_bytes")).unwrap();
        text.trim().parse().unwrap()
    }

    /// Runs `sws` in it.
    pub(crate) fn sws(&self, args: &[&str]) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]);
        command.arg(&self.0).arg(env!("CARGO_BIN_EXE_sws")).args(args);
        Outcome::of(command.stdin(Stdio::null()).output().unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Refused while a process that has ended is still being taken down.
        while std::fs::remove_dir(&self.0)
            .is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
        {
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_limit_of_a_group_counts_as_memory() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shards/tales-moe");
    let args = ["run", model, "--tokens", "1", "--max-new-tokens", "2", "--json", "--resident"];
    let Some(group) = Group::new("small", 24 << 20) else { return };
    let name = group.0.to_str().unwrap();
    group.sws(&args).refused(2, &["tales-moe", "needs", name, "give it more", "q4"]);
    group.allow(256 << 20);
    group.sws(&args).succeeded();
}
