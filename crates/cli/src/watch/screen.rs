//! The thread that draws.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::anyhow;
use sws_engine::memory;
use sws_watch::screen::{Buffer, Now, Phase, Rect, changes, draw};
use sws_watch::{Follower, RunStep, Story, Wall};

use super::terminal::{self, Cover};
use super::{TEXT, WatchShared};
use crate::interrupt::Interrupt;
use crate::terminal::has_colours;

/// Interval between frames.
const EVERY: Duration = Duration::from_millis(100);
/// The largest part of a terminal that is drawn on.
const MOST: (u16, u16) = (320, 100);
/// Most bytes of two frames, their difference, and the text of one.
pub(super) const BYTES: u64 = MOST.0 as u64 * MOST.1 as u64 * 128;
/// Tokens that the pace is of.
const PACED: usize = 16;

/// A screen on which a run is drawn until this is dropped.
pub(super) struct Screen {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _cover: Cover,
}

impl Screen {
    pub(super) fn open(
        shared: Arc<WatchShared>,
        follower: Follower,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Screen> {
        let cover = Cover::new(interrupt).map_err(refused)?;
        let (end, ends) = channel();
        let run = move || {
            let mut artist = Artist::new(shared, follower);
            loop {
                artist.draw();
                if ends.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(run);
        let thread = thread.map_err(refused)?;
        Ok(Screen { end: Some(end), thread: Some(thread), _cover: cover })
    }
}

fn refused(error: std::io::Error) -> anyhow::Error {
    anyhow!("the terminal cannot be drawn on: {error}; leave out --watch")
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // After a panic of it there is only the terminal to restore.
            let _ = thread.join();
        }
    }
}

/// Draws frames of a run.
struct Artist {
    shared: Arc<WatchShared>,
    follower: Follower,
    now: Now,
    canvas: Canvas,
}

/// A covered terminal as it was drawn on last.
#[derive(Default)]
pub(crate) struct Canvas([Buffer; 2]);

impl Canvas {
    /// Draws a frame over the last one.
    pub(crate) fn draw(&mut self, story: &Story, now: &Now) {
        let (columns, lines) = terminal::size();
        let area = Rect::new(0, 0, columns.min(MOST.0), lines.min(MOST.1));
        let [before, after] = &mut self.0;
        let mut out = String::new();
        if before.area != area {
            *before = Buffer::empty(area);
            *after = Buffer::empty(area);
            out.push_str("\x1b[0m\x1b[2J");
        }
        draw(story, now, after);
        out.push_str(&changes(before, after));
        terminal::write(&out);
        self.0.swap(0, 1);
    }
}

impl Artist {
    fn new(shared: Arc<WatchShared>, follower: Follower) -> Artist {
        let wall = Wall::new(follower.rows());
        let now = Now { wall, has_colours: has_colours(), ..Now::default() };
        Artist { shared, follower, now, canvas: Canvas::default() }
    }

    fn draw(&mut self) {
        let step = self.follower.step();
        self.follower.look(&mut self.now.wall);
        self.now.memory = memory();
        self.now.drives = self.follower.drives();
        self.now.tier = self.follower.tier();
        self.now.phase = match self.shared.prompt.load(Ordering::Relaxed) {
            TEXT => Phase::Text,
            thousandths => Phase::Prompt(f64::from(thousandths) / 1000.0),
        };
        let mut story = self.shared.story();
        story.step(step);
        self.now.pace = pace(&story);
        self.canvas.draw(&story, &self.now);
    }
}

/// Tokens per second of the latest tokens; the first is the prompt's.
fn pace(story: &Story) -> Option<f64> {
    let first = usize::from(story.left_out() == 0);
    let latest: Vec<&RunStep> =
        story.tokens().iter().skip(first).rev().take(PACED).map(|token| &token.step).collect();
    let seconds = RunStep::sum(latest.iter().copied()).seconds;
    if seconds > 0.0 { Some(latest.len() as f64 / seconds) } else { None }
}
