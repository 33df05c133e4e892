//! Processor time of the machine and of this process.

/// Processor time since the machine began, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ticks {
    /// Time of all processors, including idle time, and the part that was not idle or was taken by
    /// a hypervisor.
    all: u64,
    busy: u64,
    /// Time of this process, and of its children that have ended.
    own: u64,
}

impl Ticks {
    /// The time until now. `None` where the system does not report it.
    pub fn now() -> Option<Ticks> {
        if cfg!(not(target_os = "linux")) {
            return None;
        }
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        let process = std::fs::read_to_string("/proc/self/stat").ok()?;
        Ticks::parse(&system, &process)
    }

    fn parse(system: &str, process: &str) -> Option<Ticks> {
        let line = system.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, waiting for I/O, interrupts (two), stolen; guests are in the first.
        let times: Vec<u64> =
            line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[_, _, _, idle, waits, ..] = times.as_slice() else { return None };
        let all = times.iter().sum();
        // After the name, which may contain spaces, the state is the first field.
        let mut fields = process.rsplit_once(')')?.1.split_whitespace().skip(11);
        let mut field = || fields.next()?.parse::<u64>().ok();
        let own = field()? + field()? + field()? + field()?;
        Some(Ticks { all, busy: all - idle - waits, own })
    }

    /// Share of processor time that other programs had until `end`, from 0 to 1. `None` before a tick has
    /// passed.
    pub fn others_until(self, end: Ticks) -> Option<f64> {
        let all = end.all.checked_sub(self.all).filter(|&all| all > 0)?;
        let busy = end.busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(end.own.saturating_sub(self.own));
        Some((others as f64 / all as f64).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_what_was_neither_ours_nor_idle() {
        let process = |user: u64, system: u64| {
            format!("12 (a (b) c) S 1 1 1 0 -1 4 5 6 7 8 {user} {system} 0 0 20 0 3 0")
        };
        let system = |user: u64, idle: u64, stolen: u64| {
            format!("cpu  {user} 0 10 {idle} 5 1 0 {stolen} 0 0\ncpu0 1 2 3\n")
        };
        let began = Ticks::parse(&system(100, 1000, 0), &process(50, 4)).unwrap();
        assert_eq!(began, Ticks { all: 1116, busy: 111, own: 54 });
        for (user, idle, stolen, own, share) in [
            // Nothing passed; everything was this process; half was another; the rest was stolen.
            (100, 1000, 0, 0, None),
            (200, 1000, 0, 100, Some(0.0)),
            (200, 1000, 0, 50, Some(0.5)),
            (200, 1100, 0, 100, Some(0.0)),
            (150, 1000, 50, 50, Some(0.5)),
            // The two are not read at the same time.
            (200, 1000, 0, 110, Some(0.0)),
        ] {
            let end = Ticks::parse(&system(user, idle, stolen), &process(50 + own, 4)).unwrap();
            assert_eq!(began.others_until(end), share, "{user} {idle} {stolen} {own}");
        }
        for (system, process) in
            [("", "1 (a) S"), ("cpu  1 2 3 4 5 6 7 8", "1 (a) S"), ("cpu x", "")]
        {
            assert_eq!(Ticks::parse(system, process), None, "{system:?} {process:?}");
        }
        assert!(
            cfg!(not(target_os = "linux")) || Ticks::now().is_some(),
            "this system reports both"
        );
    }
}
