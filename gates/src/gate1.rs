//! Gate 1: on-demand streaming.
//!
//! A model far larger than the process gives the same bits as in memory at any budget, and the
//! budget bounds the process as the kernel counts it.

use anyhow::{Result, ensure};
use sws_benchmarks::fio;
use sws_benchmarks::paired::median;
use sws_cache::policy::PolicyKind;
use sws_testing::cgroup::Group;
use sws_testing::{sampled, tales};
use sws_text::Sampling;

use crate::pairs::{self, Contender, TURN, ratios};
use crate::report::Report;
use crate::setting::{Setting, mib};
use crate::task::{Ask, Done, Drafting, Ended, Endured, Ram, Task, Turn, Work, finished};
use crate::virtual_time;

const SAME: &str = "every bit of routes and logits agrees with the resident model at every step";
const SMALL: &str = "the model has at least 8 times the memory of the process without it";
const PART: &str = "the budget is for a part of the model";
const ALIVE: &str = "not killed where the limit is the budget";
const COUNTED: &str = "the kernel counts at most the budget (direct reader)";
const STEADY: &str = "memory does not grow from answer to answer";
const GIVEN: &str = "a lowered budget gives its slots' memory back to the system";
const WITHIN: &str = "the most memory of the process is at most its budget";
const ONCE: &str = "a prompt of 512 tokens reads at most 1.05 of the bytes that are not cached";
const TEXT: &str = "both contenders give the same text";
const CACHED: &str = "with everything cached at least 0.9 of the resident model's speed";
const FASTER: &str = "the default policy is not slower than lru";
const READING: &str =
    "disk-bound, at most 1.15 of fio's time for as many bytes (fio with ordinary buffers)";

/// Growth left to the allocator: less than a twentieth of the bytes that one answer reads.
const STEADY_WITHIN: u64 = 256 << 10;

/// Shares of the experts' bytes that fit into a budget, each with one further reader to try. `None`
/// is the smallest budget.
const BUDGETS: [(Option<f64>, Try); 5] = [
    (Some(0.75), Try { policy: "expected", reader: "mmap", above: COUNTING }),
    (Some(0.50), Try { policy: "expected", reader: "uring", above: COUNTING }),
    (Some(0.25), Try { policy: "lru", reader: "mmap", above: 0 }),
    (Some(0.10), Try { policy: "lru", reader: "uring", above: 0 }),
    (None, Try { policy: "expected", reader: "mmap", above: 0 }),
];

/// Configuration to try at a budget.
#[derive(Clone, Copy)]
struct Try {
    policy: &'static str,
    reader: &'static str,
    /// Control group limit above the budget: 0, or enough to count without killing.
    above: u64,
}

impl Try {
    /// Name of the case with this share of the weights.
    fn case(self, form: &str, share: Option<f64>) -> String {
        let Try { policy, reader, above } = self;
        let name = share.map_or("min".to_owned(), |share| format!("{:.0} %", 100.0 * share));
        let limit = if above == 0 { "kills" } else { "counts" };
        let draft = if self.draft(share) == Drafting::No { "" } else { " with a draft" };
        format!("{form}, {name}, {policy}{draft}, {reader}, {limit}")
    }

    /// In the group that kills, the run uses all defaults and therefore a draft. The smallest
    /// budget has no room for one.
    fn draft(self, share: Option<f64>) -> Drafting {
        match (self.reader, self.above, share) {
            ("direct", 0, Some(_)) => Drafting::Learning,
            _ => Drafting::No,
        }
    }
}

const COUNTING: u64 = 2 << 30;
/// Configurations tried at every budget.
const TRIES: [Try; 3] = [
    Try { policy: "expected", reader: "direct", above: 0 },
    Try { policy: "expected", reader: "direct", above: COUNTING },
    Try { policy: "lru", reader: "direct", above: COUNTING },
];

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(1, "on-demand streaming");
    for form in FORMS {
        stream(&mut report, setting, form)?;
    }
    reread(&mut report, setting)?;
    let times = if setting.full { 1000 } else { 100 };
    let case = format!("{times} answers, then half the slots");
    if setting.wants(&case) {
        endure(&mut report, &case, times)?;
    }
    talk(&mut report, setting)?;
    if setting.wants("virtual time") {
        virtual_time::run(&mut report)?;
    }
    if setting.full {
        wall(&mut report, setting)?;
    }
    Ok(report)
}

const EXPECTED: PolicyKind = PolicyKind::Expected;
const FORMS: [&str; 2] = ["shards", "in place"];

fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|n| (n * 131 + 5) % 4096).collect()
}

/// Same bits as in memory at every budget, with memory as the kernel counts it.
fn stream(report: &mut Report, setting: &Setting, form: &str) -> Result<()> {
    // In place, only the read path differs: one budget is enough.
    let budgets = if form == "shards" { &BUDGETS[..] } else { &BUDGETS[3..4] };
    let mut cases = Vec::new();
    for &(share, further) in budgets {
        for how in TRIES.into_iter().chain([further]) {
            if setting.wants(&how.case(form, share)) {
                cases.push((share, how));
            }
        }
    }
    if cases.is_empty() {
        return Ok(());
    }
    let model = setting.model(form)?;
    let tokens = if setting.full { 128 } else { 64 };
    let prompt = ids(32);
    let context = prompt.len() + tokens;
    let task = |ram, policy: &str, reader: &str, work| Task {
        model: model.clone(),
        ram,
        policy: policy.to_owned(),
        reader: reader.to_owned(),
        context,
        work,
        draft: Drafting::No,
        only_plan: false,
    };
    let samplings = vec![sampled(), Sampling::default()];
    let certify = Work::Certify { prompt, tokens, samplings };
    let resident = finished(task(Ram::Resident, "expected", "direct", certify).run(None))?;
    report.row(&format!("{form}, resident"), "-".to_owned(), &resident, None);
    let certificates = resident.certificates;
    let mut planned = None;
    for (share, how) in cases {
        let Try { policy, reader, above } = how;
        let budget = match planned {
            Some((of, budget)) if of == share => budget,
            _ => {
                let ram = share.map_or(Ram::Min, Ram::Share);
                let plan = task(ram, "expected", "direct", Work::Replay(certificates.clone()));
                finished(plan.planned().run(None))?.budget
            }
        };
        planned = Some((share, budget));
        let group = match Group::new("gate", budget + above) {
            Ok(group) => Some(group),
            Err(error) => {
                report.note(format!(
                    "skipped: memory as the kernel counts and limits it, as no control group of version 1 can be made here ({error})"
                ));
                None
            }
        };
        let case = how.case(form, share);
        let work = Work::Replay(certificates.clone());
        let task = task(Ram::Bytes(budget), policy, reader, work).with(how.draft(share));
        let ended = task.run(group.as_ref());
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
        check(report, &case, &done);
        if reader == "direct"
            && let Some(counted) = counted
        {
            report.check(COUNTED, counted <= done.budget, || {
                format!("{case}: {} of {}", mib(counted), mib(done.budget))
            });
        }
        report.row(&case, format!("{}/{}", done.agreed, done.steps), &done, counted);
    }
    Ok(())
}

/// A prompt that needs every expert, with a quarter of them in memory.
fn reread(report: &mut Report, setting: &Setting) -> Result<()> {
    for form in FORMS {
        let case = format!("{form}, 25 %, a prompt of 512 tokens, warm");
        if !setting.wants(&case) {
            continue;
        }
        let mut warm = Contender::new(&pairs::task(setting, form, Ram::Share(0.25), EXPECTED)?)?;
        let turn = warm.turn(&Ask::Prompt(ids(512)))?;
        let done = warm.finish([].iter())?;
        let absent = done.experts - done.slots;
        report.check(ONCE, turn.bytes as f64 <= 1.05 * absent as f64, || {
            format!("{case}: {} read, {} not cached", mib(turn.bytes), mib(absent))
        });
        let part = turn.bytes as f64 / absent as f64;
        report.row(&case, format!("{part:.3} of absent"), &done, None);
    }
    Ok(())
}

/// Pairs with fio, which takes longer than all the rest. The interval is from the 2nd to the 8th.
const FIO_PAIRS: usize = 9;
/// Wall time on a quiet machine.
fn wall(report: &mut Report, setting: &Setting) -> Result<()> {
    for form in FORMS {
        let case = format!("wall, {form}, all cached over resident");
        let cached = pairs::task(setting, form, Ram::Share(1.0), EXPECTED);
        let resident = pairs::task(setting, form, Ram::Resident, EXPECTED);
        duel(report, setting, &case, [cached, resident], (CACHED, 1.0 / 0.9))?;
    }
    for share in [0.5, 0.25, 0.1] {
        let case = format!("wall, shards, {:.0} %, expected over lru", 100.0 * share);
        let tasks = [EXPECTED, PolicyKind::Lru];
        let tasks = tasks.map(|policy| pairs::task(setting, "shards", Ram::Share(share), policy));
        duel(report, setting, &case, tasks, (FASTER, 1.0))?;
    }
    for form in FORMS {
        let case = format!("wall, {form}, 25 %, over fio");
        if setting.wants(&case) {
            over_fio(report, setting, form, &case)?;
        }
    }
    Ok(())
}

fn duel(
    report: &mut Report,
    setting: &Setting,
    case: &str,
    tasks: [Result<Task>; 2],
    (what, bar): (&'static str, f64),
) -> Result<()> {
    if !setting.wants(case) {
        return Ok(());
    }
    let [first, second] = tasks;
    let (turns, ended) = pairs::duels([first?, second?])?;
    for [a, b] in &turns {
        report.check(TEXT, a.tokens == b.tokens, || format!("{case}: {a:?} and {b:?}"));
    }
    report.ratio(what, case, ratios(&turns), bar);
    for (name, done) in ["first", "second"].into_iter().zip(&ended) {
        report.row(&format!("{case}, {name}"), "-".to_owned(), done, None);
    }
    Ok(())
}

/// Compares with fio, which reads the same number of bytes from the same files.
fn over_fio(report: &mut Report, setting: &Setting, form: &str, case: &str) -> Result<()> {
    if !fio::available() {
        report.note("skipped: wall time beside fio, which is not installed".to_owned());
        return Ok(());
    }
    let task = pairs::task(setting, form, Ram::Share(0.25), EXPECTED)?;
    let huge = fio::has_huge_pages();
    if !huge {
        report.note(
            "skipped: fio with buffers in huge pages, as ours are, as the system keeps none (sysctl vm.nr_hugepages=64)"
                .to_owned(),
        );
    }
    let mut ours = Contender::new(&task)?;
    let mut ordinary = Vec::new();
    let mut in_huge = Vec::new();
    let mut busy = Vec::new();
    for _ in 0..FIO_PAIRS {
        let turn = ours.turn(&TURN)?;
        let read = |huge_pages| -> Result<Turn> {
            let speed = fio::random_reads(&task.model, turn.bytes, huge_pages)?;
            Ok(Turn { seconds: turn.bytes as f64 / speed, ..Turn::default() })
        };
        ordinary.push([turn.clone(), read(false)?]);
        if huge {
            in_huge.push([turn.clone(), read(true)?]);
        }
        busy.push(turn.busy);
    }
    report.note(format!("{case}: a read in flight for {:.3} of the time", median(busy)));
    report.ratio(READING, case, ratios(&ordinary), 1.15);
    if huge {
        report.tell_ratio(&format!("{case} with buffers in huge pages"), ratios(&in_huge));
    }
    let done = ours.finish(ordinary.iter().map(|pair| &pair[0]))?;
    report.row(case, "-".to_owned(), &done, None);
    Ok(())
}

/// Alternates prompts, long and short, with a few generated tokens: prompts compute in memory that
/// is lent to expert slots during decoding.
fn talk(report: &mut Report, setting: &Setting) -> Result<()> {
    let case = "shards, 25 %, turns of a talk, kills";
    if !setting.wants(case) {
        return Ok(());
    }
    let turns = [480, 3, 60, 500, 20, 470, 2, 490, 200, 510, 480, 30, 505];
    let task = Task {
        work: Work::Talk(turns.to_vec()),
        ..pairs::task(setting, "shards", Ram::Share(0.25), EXPECTED)?
    };
    let budget = finished(task.clone().planned().run(None))?.budget;
    let group = Group::new("gate", budget).ok();
    if group.is_none() {
        report.note(format!(
            "skipped: the limit of `{case}`, as no control group of version 1 can be made here"
        ));
    }
    let ended = Task { ram: Ram::Bytes(budget), ..task }.run(group.as_ref());
    if group.is_some() {
        let killed = matches!(ended, Err(Ended::Killed(_)));
        report.check(ALIVE, !killed, || format!("{case}: {ended:?}"));
        if killed {
            return Ok(());
        }
    }
    let done = finished(ended)?;
    report.check(WITHIN, done.lent > 0 && done.peak_rss <= done.budget, || {
        format!("{case}: {} of {}, {} lent", mib(done.peak_rss), mib(done.budget), mib(done.lent))
    });
    report.row(case, "-".to_owned(), &done, group.and_then(|group| group.peak().ok()));
    Ok(())
}

/// Many answers in one process, then a lowered budget.
fn endure(report: &mut Report, case: &str, times: usize) -> Result<()> {
    let task = Task {
        model: tales(),
        ram: Ram::Share(0.5),
        policy: "expected".to_owned(),
        reader: "direct".to_owned(),
        context: 16,
        work: Work::Endure(times),
        draft: Drafting::No,
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
    report.row(case, "-".to_owned(), &done, None);
    Ok(())
}

fn check(report: &mut Report, case: &str, done: &Done) {
    report.check(SAME, done.agreed == done.steps && done.steps > 0, || {
        format!("{case}: {}", done.differs.as_deref().unwrap_or("nothing was compared"))
    });
    report.check(SMALL, done.weights >= 8 * done.floor, || {
        format!("{case}: {} and {}", mib(done.weights), mib(done.floor))
    });
    let part = done.budget < done.weights && done.slots + done.lent < done.experts;
    report.check(PART, part, || format!("{case}: {} for {}", mib(done.budget), mib(done.weights)));
    report.check(WITHIN, done.peak_rss <= done.budget, || {
        format!("{case}: {} of {}", mib(done.peak_rss), mib(done.budget))
    });
}
