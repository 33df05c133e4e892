//! A page in a single file: styles, script and a story. It loads nothing. [`live`] is the page of a
//! server, with the same drawing code.

pub mod live;

use std::io::{self, Write};

use serde::Serialize;

use crate::Story;
use crate::story::LEVELS;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(include_str!("draw.js"), include_str!("page.js"));

/// Returns the page of a story.
pub fn html(story: &Story) -> String {
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = write(story, &mut page);
    String::from_utf8(page).unwrap_or_default()
}

/// Writes the page of a story, in small parts, so that it takes less memory than its length.
pub fn write(story: &Story, to: &mut dyn Write) -> io::Result<()> {
    let (begin, rest) = PAGE.split_once("<!--style-->").unwrap_or_default();
    let (middle, rest) = rest.split_once("<!--data-->").unwrap_or_default();
    let (after, end) = rest.split_once("<!--script-->").unwrap_or_default();
    for part in [begin, STYLE.trim_end(), middle] {
        to.write_all(part.as_bytes())?;
    }
    write_json(story, &mut Embedded(to))?;
    for part in [after, SCRIPT.trim_end(), end] {
        to.write_all(part.as_bytes())?;
    }
    Ok(())
}

/// The data of a page, in columns with one entry per token or per frame.
#[derive(Serialize)]
struct PageData<'s> {
    version: u32,
    model: &'s str,
    summary: String,
    notes: &'s [String],
    /// The number of each layer with experts, and of its experts.
    rows: Vec<[usize; 2]>,
    budget: Option<u64>,
    timed: bool,
    has_places: bool,
    /// Multiples of the usual cost that separate the levels of tokens.
    levels: [f64; 3],
    opening: &'s str,
    /// Number of tokens before the first entry.
    left_out: u64,
    tokens: PageTokens<'s>,
    frames: Frames<'s>,
}

#[derive(Default, Serialize)]
struct PageTokens<'s> {
    text: Vec<&'s str>,
    level: Vec<usize>,
    seconds: Vec<f64>,
    computing: Vec<f64>,
    waiting: Vec<f64>,
    reading: Vec<f64>,
    bytes: Vec<u64>,
    hits: Vec<u64>,
    misses: Vec<u64>,
}

#[derive(Serialize)]
struct Frames<'s> {
    /// Number of tokens up to each frame.
    tokens: Vec<u64>,
    memory: Vec<Option<u64>>,
    /// The states of all experts, two per letter: `A` + first + 5 × second.
    states: Vec<&'s str>,
}

impl PageTokens<'_> {
    fn of(story: &Story) -> PageTokens<'_> {
        let usual = story.usual();
        let mut columns = PageTokens::default();
        for (number, token) in story.tokens().iter().enumerate() {
            let step = token.step.rounded();
            columns.text.push(&token.text);
            columns.level.push(story.level(number, usual));
            // Without known times, the columns of times and bytes are empty.
            if story.about.is_timed {
                columns.seconds.push(step.seconds);
                columns.computing.push(step.computing);
                columns.waiting.push(step.waiting);
                columns.reading.push(step.reading);
                columns.bytes.push(step.bytes);
            }
            columns.hits.push(step.hits);
            columns.misses.push(step.misses);
        }
        columns
    }
}

fn write_json(story: &Story, to: &mut impl Write) -> io::Result<()> {
    let frames = story.frames();
    let data = PageData {
        version: 1,
        model: &story.about.model,
        summary: summary(story),
        notes: &story.about.notes,
        rows: story.rows.iter().map(|row| [row.layer, row.experts]).collect(),
        budget: story.about.budget,
        timed: story.about.is_timed,
        has_places: story.about.has_places,
        levels: LEVELS,
        opening: story.opening(),
        left_out: story.left_out(),
        tokens: PageTokens::of(story),
        frames: Frames {
            tokens: frames.iter().map(|frame| frame.tokens).collect(),
            memory: frames.iter().map(|frame| frame.memory).collect(),
            states: frames.iter().map(|frame| frame.states.as_str()).collect(),
        },
    };
    Ok(serde_json::to_writer(to, &data)?)
}

/// A summary of the story in one line.
fn summary(story: &Story) -> String {
    let total = story.total();
    let mut parts = vec![match story.written() {
        1 => "1 token".to_owned(),
        tokens => format!("{tokens} tokens"),
    }];
    if story.about.is_timed {
        parts.push(format!("{:.1} s with the prompt", total.seconds));
        parts.push(format!("{:.2} GB read", total.bytes as f64 / 1e9));
    }
    if let Some(rate) = total.hit_rate().filter(|_| story.about.is_timed || story.about.has_places)
    {
        parts.push(format!("{:.0} % hits", 100.0 * rate));
    }
    parts.join(", ")
}

/// Writes JSON that cannot break the page around it, whatever texts it contains.
struct Embedded<'w>(&'w mut dyn Write);

impl Write for Embedded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| b"<>&".contains(byte)) {
            self.0.write_all(&rest[..at])?;
            write!(self.0, "\\u{:04x}", rest[at])?;
            rest = &rest[at + 1..];
        }
        self.0.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use sws_engine::watch::LayerRow;

    use super::*;
    use crate::RunStep;
    use crate::{ExpertState, MAX_FRAME_BYTES, MAX_TOKENS, StorySubject, Wall};

    fn data(page: &str) -> serde_json::Value {
        let (_, rest) = page.split_once("id=\"data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn hostile_texts_stay_data() {
        let hostile = "</script><script>alert(1)</script><!-- & \u{2028} <!--script--> \u{1b}[31m";
        let about = StorySubject {
            model: hostile.to_owned(),
            notes: vec![hostile.to_owned()],
            is_timed: true,
            ..StorySubject::default()
        };
        let mut story = Story::new(about, Vec::new());
        story.set_opening(hostile);
        story.token(hostile, RunStep::default());
        let page = html(&story);
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(!page.contains("alert(1)<") && !page.contains("<!--"));
        let data = data(&page);
        for text in
            [&data["model"], &data["notes"][0], &data["opening"], &data["tokens"]["text"][0]]
        {
            assert_eq!(text, hostile);
        }
        for external in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(external), "{external}");
        }
    }

    #[test]
    fn unknown_times_are_left_out() {
        let about = StorySubject { has_places: true, ..StorySubject::default() };
        let mut story = Story::new(about, vec![LayerRow { layer: 3, experts: 3 }]);
        story.token(" 7", RunStep { hits: 3, misses: 1, ..RunStep::default() });
        let mut wall = Wall::new(story.rows.clone());
        wall.states[2] = ExpertState::Waited;
        story.frame(&wall, None);
        let data = data(&html(&story));
        assert_eq!(data["timed"], false);
        assert_eq!(data["tokens"]["seconds"], serde_json::json!([]));
        assert_eq!(
            data["frames"],
            serde_json::json!({"tokens": [1], "memory": [null], "states": ["AE"]})
        );
        assert_eq!(data["rows"], serde_json::json!([[3, 3]]));
        assert_eq!(data["summary"], "1 token, 75 % hits");
    }

    #[test]
    fn size_of_a_page_is_bounded() {
        let rows = vec![LayerRow { layer: 0, experts: 30_000 }];
        let mut story = Story::new(StorySubject::default(), rows.clone());
        let wall = Wall::new(rows);
        for _ in 0..MAX_TOKENS + 5 {
            story.token(&"<".repeat(500), RunStep::default());
            story.frame(&wall, Some(1 << 40));
        }
        let page = html(&story);
        // Each of the texts in six letters a byte, and what the columns have beside.
        assert!(page.len() < MAX_FRAME_BYTES + MAX_TOKENS * (6 * 256 + 200), "{}", page.len());
    }
}
