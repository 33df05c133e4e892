use std::time::Duration;

use sws_engine::DriveMetrics;
use sws_engine::watch::Lap;

use super::*;
use crate::ExpertState;
use crate::screen::Phase;

fn pass(tokens: u64, seconds: f64) -> Passed {
    Passed {
        tokens,
        texts: 1,
        step: RunStep { seconds, ..RunStep::default() },
        ..Passed::default()
    }
}

fn writer(log: &Log, owner: u64) -> FrameWriter {
    FrameWriter::new(None, owner, log.end())
}

/// Through JSON, as listeners get it.
fn sent(frame: &LiveFrame) -> LiveFrame {
    let json = serde_json::to_string(frame).unwrap();
    let read: LiveFrame = serde_json::from_str(&json).unwrap();
    assert_eq!(&read, frame, "{json}");
    read
}

#[test]
fn frames_have_what_happened_since_the_last() {
    let mut log = Log::default();
    let mut listener = writer(&log, 7);
    log.token(7, "req-1", " a");
    let frame = sent(&listener.frame(1.0, &log));
    assert_eq!((frame.tokens.len(), frame.passes.len()), (0, 0), "its cost is not known");
    let lap = Lap { time: Duration::from_micros(9), ..Lap::default() };
    log.layers(&[lap]);
    log.pass(pass(1, 0.5));
    let frame = sent(&listener.frame(1.1, &log));
    assert_eq!((frame.tokens[0].pass, frame.passes[0].number), (0, 0));
    assert_eq!(frame.tokens[0].text.as_deref(), Some(" a"));
    assert_eq!((frame.layers, frame.lost), (vec![[9, 0, 0]], 0));
    let frame = sent(&listener.frame(1.2, &log));
    assert_eq!(frame, LiveFrame { at: 1.2, ..LiveFrame::default() });
    // One that begins now has no earlier ones.
    assert!(writer(&log, 7).frame(1.2, &log).tokens.is_empty());
}

#[test]
fn texts_are_shown_to_their_owners_only() {
    let mut log = Log::default();
    let mut listeners = [1, 2].map(|owner| writer(&log, owner));
    log.token(1, "req-1", "secret");
    log.token(2, "req-2", "public");
    log.pass(pass(2, 0.1));
    let shown = listeners.each_mut().map(|listener| {
        let frame = listener.frame(0.0, &log);
        let tokens = frame.tokens.iter();
        tokens.map(|token| (token.text.clone(), token.request.clone())).collect::<Vec<_>>()
    });
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(shown[0], [(some("secret"), some("req-1")), (None, None)]);
    assert_eq!(shown[1], [(None, None), (some("public"), some("req-2"))]);
}

#[test]
fn memory_is_bounded_and_listeners_are_told_what_they_lost() {
    let mut log = Log::default();
    let mut slow = writer(&log, 1);
    for _ in 0..5000 {
        log.token(1, "req-1", &"ü".repeat(1000));
        log.pass(pass(1, 0.1));
    }
    let frame = slow.frame(0.0, &log);
    assert_eq!((frame.tokens.len(), frame.passes.len()), (1024, 1024));
    assert_eq!(frame.lost, 2 * (5000 - 1024));
    assert!(frame.tokens.iter().all(|token| token.text.as_ref().unwrap().len() <= 128));
    assert_eq!(slow.frame(0.0, &log).lost, 0);
    let json = serde_json::to_string(&frame).unwrap();
    assert!(json.len() < MAX_EVENT, "{}", json.len());
}

fn hello() -> Hello {
    Hello {
        version: VERSION,
        model: "tales".to_owned(),
        rows: vec![[0, 4], [3, 4]],
        budget: Some(100),
        ..Hello::default()
    }
}

fn said(pass: u64, request: &str, text: &str) -> Said {
    Said { pass, text: Some(text.to_owned()), request: Some(request.to_owned()) }
}

fn request(id: &str, state: &str) -> LiveRequest {
    LiveRequest {
        id: id.to_owned(),
        state: state.to_owned(),
        prompt: 10,
        done: 5,
        ..LiveRequest::default()
    }
}

#[test]
fn pictures_follow_frames() {
    let mut reader = Reader::new(&hello()).unwrap();
    let reading = Some(vec![request("r1", "prompt"), request("r2", "waiting")]);
    reader.take(LiveFrame { at: 1.0, requests: reading, texts: [1, 1], ..LiveFrame::default() });
    assert_eq!(reader.now.phase, Phase::Prompt(0.5));
    assert_eq!(reader.now.requests[0].doing, "prompt 5/10");
    assert_eq!(reader.now.tier, None);
    let tier = TierTally { held: 2, slots: 4, bytes: 200, limit: 500, hits: 9, has_failed: false };
    let both = Some(vec![request("r1", "generation"), request("r2", "generation")]);
    let frame = sent(&LiveFrame { tier: Some(tier), ..LiveFrame::default() });
    reader.take(LiveFrame {
        tier: frame.tier,
        at: 2.0,
        wall: vec![(1, "Y".to_owned()), (90, "Y".to_owned())],
        passes: vec![Passed { number: 3, at: 1.9, ..pass(2, 0.25) }],
        tokens: vec![said(3, "r1", "One"), said(3, "r2", "Two")],
        requests: both,
        texts: [2, 0],
        ..LiveFrame::default()
    });
    assert_eq!(reader.now.wall.states[2..4], [ExpertState::Waited, ExpertState::Waited]);
    assert_eq!(reader.now.phase, Phase::Text);
    let texts = |reader: &Reader| -> String {
        reader.story.tokens().iter().map(|token| token.text.as_str()).collect()
    };
    assert_eq!(texts(&reader), "One", "one text at a time");
    assert_eq!(reader.story.tokens()[0].step.seconds, 0.25);
    assert_eq!(reader.now.tier, Some(tier));
    // The first ends, and the second is shown from there on.
    let second = Some(vec![request("r2", "generation")]);
    let tokens = vec![said(4, "r1", "."), said(4, "r2", " wolves")];
    reader.take(LiveFrame {
        at: 2.1,
        tokens,
        requests: second,
        texts: [1, 0],
        ..LiveFrame::default()
    });
    reader.take(LiveFrame {
        at: 2.2,
        tokens: vec![said(5, "r2", ".")],
        texts: [1, 0],
        ..LiveFrame::default()
    });
    assert_eq!(texts(&reader), "One.\n\n wolves.");
    reader.take(LiveFrame { at: 9.0, requests: Some(Vec::new()), ..LiveFrame::default() });
    assert_eq!((reader.now.phase, reader.now.pace), (Phase::Idle, None));
}

#[test]
fn servers_of_other_versions_or_impossible_models_are_refused() {
    assert!(Reader::new(&Hello { version: 2, ..hello() }).is_none());
    for rows in [vec![[0, usize::MAX], [1, 2]], vec![[0, 1 << 40]]] {
        assert!(Reader::new(&Hello { rows, ..hello() }).is_none());
    }
    let mut reader = Reader::new(&hello()).unwrap();
    let wall = vec![(usize::MAX, "Y".to_owned()), (0, "\u{1b}é~".to_owned())];
    reader.take(LiveFrame { wall, at: f64::MAX, ..LiveFrame::default() });
    reader.take(LiveFrame { at: f64::MIN, ..LiveFrame::default() });
}

#[test]
fn numbers_and_lists_of_a_server_may_be_any() {
    let mut reader = Reader::new(&hello()).unwrap();
    let most = u64::MAX;
    let step =
        RunStep { bytes: most, hits: most, misses: most, on_tier: most, ..RunStep::default() };
    for number in 0..3 {
        reader.take(LiveFrame {
            step,
            drives: vec![DriveMetrics::default(); 10_000],
            passes: vec![Passed { number, step, ..Passed::default() }],
            tokens: vec![said(number, "r1", "One"); 10_000],
            ..LiveFrame::default()
        });
    }
    assert_eq!((reader.story.total(), reader.story.read_bytes()), (step, most));
    assert_eq!(reader.now.drives.len(), 64);
    assert_eq!(reader.now.pace, Some(16_384.0), "of the latest tokens, within a second");
}
