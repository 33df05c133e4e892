//! A model that does not fit into its control group is refused, before the kernel kills.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::sws::Outcome;

/// A control group of version 1, removed at the end.
struct Group(PathBuf);

impl Group {
    /// None where this process may not make one.
    fn new(limit: u64) -> Option<Group> {
        let dir =
            Path::new("/sys/fs/cgroup/memory").join(format!("sws-test-{}", std::process::id()));
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

    /// Runs `sws` in it.
    fn sws(&self, args: &[&str]) -> Outcome {
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
    let Some(group) = Group::new(24 << 20) else { return };
    let name = group.0.to_str().unwrap();
    group.sws(&args).refused(2, &["tales-moe", "needs", name, "give it more", "q4"]);
    group.allow(256 << 20);
    group.sws(&args).succeeded();
}
