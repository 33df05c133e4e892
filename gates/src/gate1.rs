//! Gate 1: on-demand streaming.
//!
//! A model larger than the process by far gives the same bits as in memory at any budget, and the
//! budget is the process as the kernel counts it.

use anyhow::{Result, bail, ensure};
use sws_model::text::Sampling;

use crate::child::{Done, Ended, Endured, Ram, Task, Work};
use crate::group::Group;
use crate::models::root;
use crate::report::Report;
use crate::{Setting, mib, virtual_time};

const SAME: &str = "every bit of routes and logits agrees with the resident model at every step";
const SMALL: &str = "the model has at least 8 times the memory of the process without it";
const PART: &str = "the budget is for a part of the model";
const ALIVE: &str = "not killed where the limit is the budget";
const COUNTED: &str = "the kernel counts at most the budget (direct reader)";
const STEADY: &str = "memory does not grow from answer to answer";
const GIVEN: &str = "a lowered budget gives its slots' memory back to the system";
const WITHIN: &str = "the most memory of the process is at most its budget";

/// What the allocator may still come to keep: less than a twentieth of what one answer reads.
const STEADY_WITHIN: u64 = 256 << 10;

/// The share of the experts' bytes that a budget has room for, none for the smallest budget, and a
/// further reader that it is tried with.
const BUDGETS: [(Option<f64>, Try); 5] = [
    (Some(0.75), Try { policy: "expected", reader: "mmap", above: COUNTING }),
    (Some(0.50), Try { policy: "expected", reader: "uring", above: COUNTING }),
    (Some(0.25), Try { policy: "lru", reader: "mmap", above: 0 }),
    (Some(0.10), Try { policy: "lru", reader: "uring", above: 0 }),
    (None, Try { policy: "expected", reader: "mmap", above: 0 }),
];

/// What a budget is tried with.
#[derive(Clone, Copy)]
struct Try {
    policy: &'static str,
    reader: &'static str,
    /// How much more than the budget its control group allows: nothing, or enough to only count.
    above: u64,
}

const COUNTING: u64 = 2 << 30;
/// What every budget is tried with.
const TRIES: [Try; 3] = [
    Try { policy: "expected", reader: "direct", above: 0 },
    Try { policy: "expected", reader: "direct", above: COUNTING },
    Try { policy: "lru", reader: "direct", above: COUNTING },
];

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(1, "on-demand streaming");
    let large = setting.large()?;
    let tokens = if setting.full { 256 } else { 64 };
    let prompt: Vec<u32> = (0..32).map(|n| (n * 131 + 5) % 4096).collect();
    let sampled =
        Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampling::default() };
    let samplings = vec![sampled, Sampling::default()];
    for (form, model) in [("shards", large.shards()), ("in place", large.checkpoint())] {
        let context = prompt.len() + tokens;
        let task = |ram, policy: &str, reader: &str, work| Task {
            model: model.clone(),
            ram,
            policy: policy.to_owned(),
            reader: reader.to_owned(),
            context,
            work,
            only_plan: false,
        };
        let (prompt, samplings) = (prompt.clone(), samplings.clone());
        let certify = Work::Certify { prompt, tokens, samplings };
        let resident = finished(task(Ram::Resident, "expected", "direct", certify).run(None))?;
        report.row(&format!("{form}, resident"), "-".to_owned(), &resident, None);
        let certificates = resident.certificates;
        // In place the way to the disk is another, and nothing else: one budget will do.
        let budgets = if form == "shards" { &BUDGETS[..] } else { &BUDGETS[3..4] };
        for &(share, further) in budgets {
            let name = share.map_or("min".to_owned(), |share| format!("{:.0} %", 100.0 * share));
            let ram = share.map_or(Ram::Min, Ram::Share);
            let plan = task(ram, "expected", "direct", Work::Replay(certificates.clone()));
            let plan = finished(plan.planned().run(None))?;
            let mut tries = TRIES.to_vec();
            tries.push(further);
            for Try { policy, reader, above } in tries {
                let group = match Group::new("gate", plan.budget + above) {
                    Ok(group) => Some(group),
                    Err(error) => {
                        report.note(format!(
                            "skipped: what the kernel counts and kills for, as no control group of version 1 can be made here ({error})"
                        ));
                        None
                    }
                };
                let limit = if above == 0 { "kills" } else { "counts" };
                let case = format!("{form}, {name}, {policy}, {reader}, {limit}");
                let ram = Ram::Bytes(plan.budget);
                let work = Work::Replay(certificates.clone());
                let ended = task(ram, policy, reader, work).run(group.as_ref());
                let counted = group.as_ref().and_then(|group| group.peak().ok());
                if group.is_some() && above == 0 {
                    let killed = matches!(ended, Err(Ended::Killed(_)));
                    report.check(ALIVE, !killed, || format!("{case}: {ended:?}"));
                    if killed {
                        continue;
                    }
                }
                let done = match ended {
                    Err(Ended::Failed(error)) if reader == "uring" => {
                        let no_uring = error.to_string().contains("no io_uring");
                        ensure!(no_uring, "{case}: {error}");
                        report.note(format!("skipped: {error}"));
                        continue;
                    }
                    ended => finished(ended)?,
                };
                check(&mut report, &case, &done);
                if let (Some(counted), "direct") = (counted, reader) {
                    report.check(COUNTED, counted <= done.budget, || {
                        format!("{case}: {} of {}", mib(counted), mib(done.budget))
                    });
                }
                report.row(&case, format!("{}/{}", done.agreed, done.steps), &done, counted);
            }
        }
    }
    endure(&mut report, if setting.full { 1000 } else { 100 })?;
    virtual_time::run(&mut report)?;
    Ok(report)
}

/// Many answers in one process, and a budget that is lowered under it.
fn endure(report: &mut Report, times: usize) -> Result<()> {
    let task = Task {
        model: root().join("shards/tales-moe"),
        ram: Ram::Share(0.5),
        policy: "expected".to_owned(),
        reader: "direct".to_owned(),
        context: 16,
        work: Work::Endure(times),
        only_plan: false,
    };
    let done = finished(task.run(None))?;
    let Endured { early, late, lowered, given_up } = done.endured;
    report.check(STEADY, late <= early + STEADY_WITHIN, || {
        format!("{} after {times} answers, {} at first", mib(late), mib(early))
    });
    report.check(GIVEN, given_up > 0 && lowered + given_up * 3 / 4 <= late, || {
        format!("{} became {} without slots of {}", mib(late), mib(lowered), mib(given_up))
    });
    report.row(&format!("{times} answers, then half the slots"), "-".to_owned(), &done, None);
    Ok(())
}

fn check(report: &mut Report, case: &str, done: &Done) {
    report.check(SAME, done.agreed == done.steps && done.steps > 0, || {
        format!("{case}: {}", done.differs.as_deref().unwrap_or("nothing was compared"))
    });
    report.check(SMALL, done.weights >= 8 * done.floor, || {
        format!("{case}: {} and {}", mib(done.weights), mib(done.floor))
    });
    let part = done.budget < done.weights && done.slots < done.experts && done.experts > 0;
    report.check(PART, part, || format!("{case}: {} for {}", mib(done.budget), mib(done.weights)));
    report.check(WITHIN, done.peak_rss <= done.budget, || {
        format!("{case}: {} of {}", mib(done.peak_rss), mib(done.budget))
    });
}

fn finished(ended: Result<Done, Ended>) -> Result<Done> {
    match ended {
        Ok(done) => Ok(done),
        Err(Ended::Failed(error)) => Err(error),
        Err(Ended::Killed(signal)) => bail!("a child was killed by signal {signal}"),
    }
}
