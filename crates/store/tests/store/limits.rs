//! Memory limits of the process, read from the files of various systems.

use std::path::{Path, PathBuf};

use sws_store::{LimitSource, SystemMemory};

const MIB: u64 = 1 << 20;
const MEMINFO: &str = "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:     512000 kB\n";
const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/// Paths and contents of files.
type Files = Vec<(String, String)>;

/// A cgroup of version 1, with its limit, its usage, and the page cache in that usage.
fn v1(dir: &str, limit: u64, used: u64, cache: u64) -> Files {
    let stat =
        format!("cache 1\ninactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 0\n");
    let file = |name: &str, text: String| (format!("{dir}/{name}"), text);
    vec![
        file("memory.limit_in_bytes", format!("{limit}\n")),
        file("memory.usage_in_bytes", format!("{used}\n")),
        file("memory.use_hierarchy", "1\n".to_owned()),
        file("memory.stat", stat),
    ]
}

/// The same for version 2, whose limit can be the word `max`.
fn v2(dir: &str, limit: &str, used: u64, cache: u64) -> Files {
    let file = |name: &str, text: String| (format!("{dir}/{name}"), text);
    vec![
        file("memory.max", format!("{limit}\n")),
        file("memory.high", "max\n".to_owned()),
        file("memory.current", format!("{used}\n")),
        file("memory.stat", format!("anon 3\ninactive_file {cache}\nactive_file 0\n")),
    ]
}

fn below(cgroup: &str, mounts: &str, groups: &[(String, String)]) -> Option<SystemMemory> {
    let temp = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = temp.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("proc/meminfo", MEMINFO);
    write("proc/self/cgroup", cgroup);
    write("proc/self/mountinfo", mounts);
    for (path, text) in groups {
        write(path, text);
    }
    SystemMemory::below(temp.path())
}

#[test]
fn smallest_limit_of_machine_and_cgroups_applies() {
    let unlimited = 9_223_372_036_854_771_712;
    let memory = "/sys/fs/cgroup/memory";
    let in_v1 = |dir: &str, limit, used, cache| v1(&format!("{memory}{dir}"), limit, used, cache);
    let apart = |mut files: Files| {
        files[2].1 = "0\n".to_owned();
        files
    };
    let high = |mut files: Files, high: u64| {
        files[1].1 = format!("{high}\n");
        files
    };
    let own = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n";
    let docker = V1.replace("0:32 /", "0:32 /docker/77");
    let spaced = V2.replace("/sys/fs/cgroup ", r"/sys/fs/c\040group ");
    #[rustfmt::skip]
    let cases = [
        // case, /proc/self/cgroup, mountinfo, groups, total, available, holder
        ("no groups at all", "", "", vec![], 1024, 500, None),
        ("groups that are not mounted", own, "", vec![], 1024, 500, None),
        ("version 1 without a limit", own, V1, vec![in_v1("/a/b", unlimited, 9 * MIB, 0), in_v1("", unlimited, 10 * MIB, 0)], 1024, 500, None),
        ("version 1", own, V1, vec![in_v1("/a/b", 300 * MIB, 100 * MIB, 0)], 300, 200, Some("/sys/fs/cgroup/memory/a/b")),
        ("page cache can be given up", own, V1, vec![in_v1("/a/b", 300 * MIB, 100 * MIB, 40 * MIB)], 300, 240, Some("/sys/fs/cgroup/memory/a/b")),
        ("the group around it", own, V1, vec![in_v1("/a/b", 300 * MIB, 0, 0), in_v1("/a", 400 * MIB, 390 * MIB, 0)], 300, 10, Some("/sys/fs/cgroup/memory/a")),
        ("a group around it that only counts itself", own, V1, vec![in_v1("/a/b", 300 * MIB, 0, 0), apart(in_v1("/a", 200 * MIB, 0, 0))], 300, 300, Some("/sys/fs/cgroup/memory/a/b")),
        ("its own answer to that is of no account", own, V1, vec![apart(in_v1("/a/b", 300 * MIB, 0, 0))], 300, 300, Some("/sys/fs/cgroup/memory/a/b")),
        ("a limit above what the machine has left", own, V1, vec![in_v1("/a/b", 900 * MIB, 100 * MIB, 0)], 900, 500, None),
        ("more used than allowed", own, V1, vec![in_v1("/a/b", 300 * MIB, 301 * MIB, 0)], 300, 0, Some("/sys/fs/cgroup/memory/a/b")),
        ("a container that sees only its group", "4:memory:/docker/77\n", &docker, vec![in_v1("", 300 * MIB, 0, 0)], 300, 300, Some("/sys/fs/cgroup/memory")),
        ("a group inside of that container", "4:memory:/docker/77/x\n", &docker, vec![in_v1("", 300 * MIB, 0, 0), in_v1("/x", 200 * MIB, 0, 0)], 200, 200, Some("/sys/fs/cgroup/memory/x")),
        ("a container whose group has another name outside", "4:memory:/elsewhere\n", &docker, vec![in_v1("", 300 * MIB, 0, 0)], 300, 300, Some("/sys/fs/cgroup/memory")),
        ("version 2", "0::/u/s\n", V2, vec![v2("/sys/fs/cgroup/u/s", "max", 0, 0), v2("/sys/fs/cgroup/u", "209715200", 100 * MIB, 50 * MIB)], 200, 150, Some("/sys/fs/cgroup/u")),
        ("version 2 that slows down before it kills", "0::/u\n", V2, vec![high(v2("/sys/fs/cgroup/u", "209715200", 0, 0), 100 * MIB)], 100, 100, Some("/sys/fs/cgroup/u")),
        ("outside of its namespace", "0::/../u\n", V2, vec![v2("/sys/fs/cgroup/u", "5", 0, 0), v2("/sys/fs/cgroup", "209715200", 0, 0)], 200, 200, Some("/sys/fs/cgroup")),
        ("a mount with a space", "0::/\n", &spaced, vec![v2("/sys/fs/c group", "209715200", 0, 0)], 200, 200, Some("/sys/fs/c group")),
    ];
    for (what, cgroup, mounts, groups, total, available, holder) in cases {
        let holder =
            holder.map_or(LimitSource::Machine, |dir| LimitSource::Cgroup(PathBuf::from(dir)));
        let expected = SystemMemory { total: total * MIB, available: available * MIB, holder };
        assert_eq!(below(cgroup, mounts, &groups.concat()), Some(expected), "{what}");
    }
}

#[test]
fn malformed_files_are_ignored() {
    let whole =
        SystemMemory { total: 1024 * MIB, available: 500 * MIB, holder: LimitSource::Machine };
    let group = |file: &str, text: &str| {
        let mut files = v1("/sys/fs/cgroup/memory/a", 300 * MIB, 0, 0);
        files.push((format!("/sys/fs/cgroup/memory/a/{file}"), text.to_owned()));
        files
    };
    let cases = [
        ("\n::\n4\n4:memory\n", V1, vec![]),
        ("4:memory:/a\n", " - \n - cgroup\n1 2 3 / - cgroup cgroup rw,memory\n", vec![]),
        ("4:memory:/a\n", V1, group("memory.limit_in_bytes", "many")),
        ("4:memory:/a\n", V1, group("memory.usage_in_bytes", "-1")),
    ];
    for (cgroup, mounts, groups) in cases {
        assert_eq!(below(cgroup, mounts, &groups).as_ref(), Some(&whole), "{cgroup:?} {mounts:?}");
    }
    assert_eq!(SystemMemory::below(Path::new("/nonexistent")), None);
}

#[test]
#[cfg(target_os = "linux")]
fn this_machine_reports_its_memory() {
    let memory = SystemMemory::now().unwrap();
    assert!(memory.available > 0 && memory.available <= memory.total, "{memory:?}");
}
