//! Control groups, which count memory as the kernel does, and kill above a limit. A model that does
//! not fit into its group is refused before that.

use std::process::Stdio;

use sws_testing::cgroup;

use crate::sws::Outcome;

/// A control group in which `sws` is run.
pub(crate) struct Group(cgroup::Group);

impl Group {
    /// Creates a group. `None`, with a line that says so, if this process may not create groups.
    pub(crate) fn new(name: &str, limit: u64) -> Option<Group> {
        let made = cgroup::Group::new(name, limit);
        made.inspect_err(|e| eprintln!("skipped: no control group can be made here ({e})"))
            .ok()
            .map(Group)
    }

    pub(crate) fn allow(&self, limit: u64) {
        self.0.allow(limit).unwrap();
    }

    /// The highest number of bytes charged at any time, page cache and kernel included.
    pub(crate) fn peak(&self) -> u64 {
        self.0.peak().unwrap()
    }

    /// Runs `sws` in the group.
    pub(crate) fn sws(&self, args: &[&str]) -> Outcome {
        let mut command = self.0.command(env!("CARGO_BIN_EXE_sws"));
        Outcome::of(command.args(args).stdin(Stdio::null()).output().unwrap())
    }
}

#[test]
fn the_limit_of_a_group_counts_as_memory() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shards/tales-moe");
    let args = ["run", model, "--tokens", "1", "--max-new-tokens", "2", "--json", "--resident"];
    let Some(group) = Group::new("small", 24 << 20) else { return };
    let name = format!("/sys/fs/cgroup/memory/sws-{}-small", std::process::id());
    group.sws(&args).refused(2, &["tales-moe", "needs", &name, "give it more", "q4"]);
    group.allow(256 << 20);
    group.sws(&args).succeeded();
}
