//! Memory of a Linux system, within the limits of control groups.

use std::fs::read_to_string;
use std::path::{Component, Path, PathBuf};

use super::{LimitSource, SystemMemory};

impl SystemMemory {
    /// Returns the memory of this process on a system whose root directory is `root`.
    ///
    /// Control groups of both versions count, and each one from the process's own up to the root: a
    /// group cannot have more than the groups that contain it.
    pub fn below(root: &Path) -> Option<SystemMemory> {
        let machine = read_to_string(root.join("proc/meminfo")).ok()?;
        let mut memory = SystemMemory {
            total: field(&machine, "MemTotal:")?.checked_mul(1024)?,
            available: field(&machine, "MemAvailable:")?.checked_mul(1024)?,
            holder: LimitSource::Machine,
        };
        // A system without control groups has neither file.
        let own = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        for hierarchy in [&V1, &V2] {
            let Some((mount, path)) = hierarchy.find(&own, &mounts) else { continue };
            for group in path.ancestors() {
                let dir: PathBuf = mount.components().chain(group.components()).collect();
                let here = root.join(dir.strip_prefix("/").unwrap_or(&dir));
                // In version 1 a group may be set to neither count nor limit the groups below it.
                let apart = read_to_string(here.join("memory.use_hierarchy"));
                if group != path && matches!(apart, Ok(word) if word.trim() == "0") {
                    break;
                }
                if let Some((limit, left)) = hierarchy.limit(&here) {
                    memory.total = memory.total.min(limit);
                    if left < memory.available {
                        memory.available = left;
                        memory.holder = LimitSource::Cgroup(dir);
                    }
                }
            }
        }
        Some(memory)
    }
}

/// File and controller names of one version of control groups.
struct Hierarchy {
    fs_type: &'static str,
    /// Controller that identifies the hierarchy; version 2 has one hierarchy for all.
    controller: Option<&'static str>,
    limits: &'static [&'static str],
    usage: &'static str,
    /// Fields of `memory.stat` for the page cache of the group and the groups below it. The kernel
    /// reclaims this cache before it refuses an allocation.
    cache: [&'static str; 2],
}

const V1: Hierarchy = Hierarchy {
    fs_type: "cgroup",
    controller: Some("memory"),
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

const V2: Hierarchy = Hierarchy {
    fs_type: "cgroup2",
    controller: None,
    // Above `high` the kernel kills nothing, but throttles everything.
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cache: ["inactive_file", "active_file"],
};

impl Hierarchy {
    /// Returns the mount point and the process's group below it.
    fn find(&self, own: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
        let own = own.lines().find_map(|line| self.group(line))?;
        let mounts: Vec<_> = mounts.lines().filter_map(|line| self.mount(line)).collect();
        for (shown, point) in &mounts {
            let Ok(path) = own.strip_prefix(shown) else { continue };
            // The path of a process outside its namespace's root looks like `/../x`.
            if path.components().all(|part| matches!(part, Component::Normal(_))) {
                return Some((point.clone(), path.to_owned()));
            }
        }
        // In a container the path can be the host's, while only the group itself is mounted.
        Some((mounts.into_iter().next()?.1, PathBuf::new()))
    }

    /// Parses a line of `cgroup` into the path of the process's group in this hierarchy.
    fn group<'l>(&self, line: &'l str) -> Option<&'l Path> {
        // `4:memory:/a/b`; version 2 is `0::/a/b`.
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        let ours = match self.controller {
            Some(name) => lists(controllers, name),
            None => controllers.is_empty(),
        };
        ours.then_some(Path::new(path))
    }

    /// Parses a line of `mountinfo` into the directory of the hierarchy and its mount point.
    fn mount(&self, line: &str) -> Option<(PathBuf, PathBuf)> {
        // 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let fs_type = kind.next()?;
        let options = kind.nth(1).unwrap_or_default();
        let ours = self.controller.is_none_or(|name| lists(options, name));
        let mut place = place.split(' ').skip(3);
        let shown = place.next()?;
        let point = place.next()?;
        if fs_type != self.fs_type || !ours {
            return None;
        }
        Some((unescape(shown), unescape(point)))
    }

    /// Returns the group's limit and the unused part of it, if it has a limit.
    fn limit(&self, dir: &Path) -> Option<(u64, u64)> {
        // Without a limit the file holds the word `max`, or a number that no machine has.
        let limit = self.limits.iter().filter_map(|name| number(&dir.join(name))).min()?;
        let stat = read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cache = self.cache.iter().filter_map(|name| field(&stat, name)).sum::<u64>();
        let used = number(&dir.join(self.usage))?.saturating_sub(cache);
        Some((limit, limit.saturating_sub(used)))
    }
}

/// Returns the number after `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some(name)
            && let Some(Ok(number)) = words.next().map(str::parse)
        {
            return Some(number);
        }
    }
    None
}

/// Returns the number that a file holds.
fn number(file: &Path) -> Option<u64> {
    read_to_string(file).ok()?.trim().parse().ok()
}

/// True if a word is among those between commas.
fn lists(words: &str, wanted: &str) -> bool {
    words.split(',').any(|word| word == wanted)
}

/// Decodes a path of `mountinfo`, which writes a space as `\040`.
fn unescape(word: &str) -> PathBuf {
    let mut parts = word.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                path.push(char::from(code));
                path.push_str(&part[3..]);
            }
            None => {
                path.push('\\');
                path.push_str(part);
            }
        }
    }
    path.into()
}
