//! Frames compared with files. `SWS_UPDATE_FRAMES=1` writes them anew, for a person to read.

use std::path::Path;

use ratatui_core::backend::TestBackend;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;
use sws_engine::watch::LayerRow;

use super::*;
use crate::{ExpertState, RunStep, StorySubject};

/// A run of a model with 16 layers of 64 experts, in the middle of a text.
fn run() -> (Story, Now) {
    let rows: Vec<LayerRow> = (2..18).map(|layer| LayerRow { layer, experts: 64 }).collect();
    let about = StorySubject {
        model: "OWNER/Model-30B-A3B".to_owned(),
        budget: Some(12 << 30),
        is_timed: true,
        ..StorySubject::default()
    };
    let mut story = Story::new(about, rows.clone());
    story.set_opening("Once upon a time, a wolf lived at the edge of the forest.");
    let words = [
        " It", " was", " old", ",", " and", " its", " teeth", " were", " blunt", ".", "\n\n",
        "Every", " evening", " it", " watched", " the", " sheep", ",", " 羊", ",", " and",
        " dreamt", "\u{1b}", ".",
    ];
    for (number, word) in words.into_iter().enumerate() {
        let seconds = [0.10, 0.11, 0.10, 0.14, 0.09, 0.25, 0.10, 0.60][number % 8];
        story.token(word, RunStep { seconds, ..RunStep::default() });
    }
    for number in 0..90 {
        let part = f64::from(number % 9) / 8.0;
        story.step(RunStep {
            seconds: 0.1,
            reading: 0.1 * part,
            computing: 0.1 * (1.0 - part),
            waiting: 0.03,
            bytes: 250_000_000,
            hits: 88,
            misses: 12,
            on_tier: 41,
        });
    }
    let mut wall = Wall::new(rows);
    for (number, state) in wall.states.iter_mut().enumerate() {
        *state = match number * 37 % 101 {
            0..45 => ExpertState::Memory,
            45..48 => ExpertState::Reading,
            48..54 => ExpertState::Used,
            54 => ExpertState::Waited,
            _ => ExpertState::Disk,
        };
    }
    let now =
        Now { wall, pace: Some(7.25), memory: Some(9 << 30), has_colours: true, ..Now::default() };
    (story, now)
}

/// Draws a frame on a terminal of tests.
fn frame(width: u16, height: u16, story: &Story, now: &Now) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(story, now, frame.buffer_mut())).unwrap();
    terminal.backend().clone()
}

/// A letter for the style of each cell: `.` plain, `g`, `b`, `o`, `v` for the colours, upper case if
/// bold, `u` underlined, `r` reversed.
fn styles(backend: &TestBackend) -> String {
    let buffer = backend.buffer();
    let letter = |cell: &ratatui_core::buffer::Cell| {
        let letter = match cell.fg {
            Color::Indexed(244) => 'g',
            Color::Indexed(33) => 'b',
            Color::Indexed(172) => 'o',
            Color::Indexed(202) => 'v',
            _ => '.',
        };
        match cell.modifier {
            with if with.contains(Modifier::REVERSED) => 'r',
            with if with.contains(Modifier::UNDERLINED) => 'u',
            with if with.contains(Modifier::BOLD) => letter.to_ascii_uppercase(),
            _ => letter,
        }
    };
    let lines = buffer.content.chunks(usize::from(buffer.area.width));
    lines.map(|line| line.iter().map(letter).collect::<String>() + "\n").collect()
}

fn check(name: &str, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/screen/frames").join(name);
    if std::env::var_os("SWS_UPDATE_FRAMES").is_some() {
        std::fs::write(&file, found).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == found, "{name} differs:\n{found}");
}

#[test]
fn frames_are_those_of_the_files() {
    let (story, now) = run();
    for (width, height) in [(80, 24), (40, 12), (200, 60)] {
        let backend = frame(width, height, &story, &now);
        check(&format!("{width}x{height}.txt"), &backend.to_string());
    }
    check("80x24.styles.txt", &styles(&frame(80, 24, &story, &now)));
    let plain = frame(80, 24, &story, &Now { has_colours: false, ..now.clone() });
    check("80x24.no-colour.txt", &(plain.to_string() + &styles(&plain)));
    let reading = Now { phase: Phase::Prompt(0.345), pace: None, memory: None, ..now };
    let begun = Story::new(story.about.clone(), story.rows.clone());
    check("80x24.prompt.txt", &frame(80, 24, &begun, &reading).to_string());
    let dense = Now { wall: Wall::default(), ..reading };
    check("80x24.dense.txt", &frame(80, 24, &begun, &dense).to_string());
}

#[test]
fn a_card_has_a_line() {
    let (story, now) = run();
    let limit = 8 << 30;
    let tier = TierTally { held: 2913, slots: 4482, bytes: 5 << 30, limit, ..TierTally::default() };
    let with = |tier| Now { tier: Some(tier), ..now.clone() };
    let words = "5.00 GiB of 8.00 GiB  2913 experts  41 % computed there";
    for (width, height, words) in [(80, 24, words), (40, 12, "5.00 GiB of 8.00 GiB  41 %")] {
        let drawn = frame(width, height, &story, &with(tier)).to_string();
        let line = drawn.lines().find(|line| line.contains("card   ")).unwrap();
        assert!(line.contains("█") && line.contains(words), "{drawn}");
    }
    let failed = with(TierTally { has_failed: true, ..tier });
    assert!(frame(80, 24, &story, &failed).to_string().contains("card   has failed, and is left"));
    for (width, height) in [(8, 2), (20, 7), (300, 100)] {
        frame(width, height, &story, &failed);
        frame(width, height, &story, &with(tier));
    }
}

/// A server with requests of one client, some of them waiting.
fn server() -> (Story, Now) {
    let (story, now) = run();
    let waiting = |number: usize, doing: &str| Waiting {
        id: format!("req-6b045798-{number}"),
        endpoint: "/v1/chat/completions".to_owned(),
        doing: doing.to_owned(),
        age: format!("{} s", 40 - 3 * number),
    };
    let mut requests = vec![waiting(1, "118 tokens"), waiting(2, "prompt 512/9000")];
    requests.extend((1..=6).map(|place| waiting(place + 2, &format!("waits, place {place}"))));
    (story, Now { requests, texts: Some([2, 6]), ..now })
}

#[test]
fn frames_of_a_server_are_those_of_the_files() {
    let (story, now) = server();
    for (width, height) in [(80, 24), (40, 12), (200, 60)] {
        let backend = frame(width, height, &story, &now);
        check(&format!("{width}x{height}.server.txt"), &backend.to_string());
    }
    let drives = [(13 << 30, false), (7 << 30, false), (1 << 20, true)];
    let drives = drives.map(|(bytes, left_out)| DriveMetrics { bytes, left_out }).to_vec();
    check("80x24.drives.txt", &frame(80, 24, &story, &Now { drives, ..now.clone() }).to_string());
    let idle = Now { phase: Phase::Idle, requests: Vec::new(), texts: Some([0, 0]), ..now };
    check("80x24.idle.txt", &frame(80, 24, &story, &idle).to_string());
}

#[test]
fn no_size_is_too_small() {
    let ((story, now), server) = (run(), server());
    for width in [1, 2, 7, 8, 9, 12, 20, 40, 300] {
        for height in [1, 2, 3, 5, 8, 11, 15, 16, 17, 100] {
            frame(width, height, &story, &now);
            frame(width, height, &server.0, &server.1);
        }
    }
}
