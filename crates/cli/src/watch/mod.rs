//! `--watch` and `--report`: a run as it happens on the terminal, and as a page afterwards.

mod screen;
mod terminal;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use sws::{LoadedModel, Model, Piece, Progress};
use sws_engine::{RunWatch, memory};
use sws_watch::{Follower, MAX_TOKENS, RunStep, Story, StorySubject, Wall, page};

use crate::atomic_file::AtomicFile;
use crate::interrupt::Interrupt;
use crate::model::{all_experts, budget};
use crate::terminal::MOST_HELD;
#[cfg(feature = "serve")]
pub(crate) use screen::Canvas;
use screen::Screen;
#[cfg(feature = "serve")]
pub(crate) use terminal::Cover;
pub(crate) use terminal::{can_show, check, restore};

/// Bytes of a token in the columns of a page.
const PAGE: u64 = 128;

/// Pictures that are wanted of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WantedViews {
    pub(crate) screen: bool,
    pub(crate) report: bool,
}

impl WantedViews {
    /// True if a run is followed at all.
    pub(crate) fn is_any(self) -> bool {
        self.screen || self.report
    }

    /// Bytes on the heap that following a text of so many tokens takes.
    pub(crate) fn bytes(self, model: &Model, tokens: usize) -> u64 {
        if !self.is_any() {
            return 0;
        }
        let experts = all_experts(model.spec());
        // Messages are held back in memory while the screen is there.
        let screen = if self.screen { screen::BYTES + 3 * MOST_HELD as u64 } else { 0 };
        // The reader of the cells has a copy of them, on each of two threads.
        let cells = 3 * RunWatch::bytes_for(model.spec());
        // The columns of a page, which a chat writes beside the model.
        let page = if self.report { PAGE * tokens.min(MAX_TOKENS) as u64 } else { 0 };
        cells + screen + page + Story::bytes_for(experts, tokens, self.report)
    }
}

/// A run that is followed.
pub(crate) struct Watcher {
    follower: Follower,
    wall: Wall,
    shared: Arc<WatchShared>,
    wanted: WantedViews,
    screen: Option<Screen>,
}

/// State that the drawing thread reads.
struct WatchShared {
    story: Mutex<Story>,
    /// Share of the prompt that is done, in thousandths; [`TEXT`] afterwards.
    prompt: AtomicU32,
}

const TEXT: u32 = u32::MAX;

impl WatchShared {
    fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher {
    /// Begins to follow a run of a loaded model, whose text continues `opening`. `None` if nothing is
    /// wanted.
    pub(crate) fn begin(
        wanted: WantedViews,
        running: &LoadedModel,
        opening: &str,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Option<Watcher>> {
        if !wanted.is_any() {
            return Ok(None);
        }
        let Some(gauge) = running.gauge() else {
            bail!("this backend reports nothing that could be watched; leave out --backend");
        };
        let follower = Follower::new(gauge.watch());
        let about = StorySubject {
            model: running.model().name(),
            notes: Vec::new(),
            budget: budget(running),
            is_timed: true,
            has_places: true,
        };
        let rows = follower.rows();
        let mut story = Story::new(about, rows.clone());
        story.set_opening(opening);
        let shared = Arc::new(WatchShared { story: Mutex::new(story), prompt: AtomicU32::new(0) });
        let screen = match wanted.screen {
            true => {
                Some(Screen::open(Arc::clone(&shared), Follower::new(gauge.watch()), interrupt)?)
            }
            false => None,
        };
        Ok(Some(Watcher { follower, wall: Wall::new(rows), shared, wanted, screen }))
    }

    /// True while the screen covers what is printed.
    pub(crate) fn covers(&self) -> bool {
        self.screen.is_some()
    }

    /// A function that takes note of the progress of the prompt.
    pub(crate) fn prompt(&self) -> impl FnMut(Progress) + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |Progress { done, total }| {
            let thousandths = done.saturating_mul(1000) / total.max(1);
            shared.prompt.store(thousandths.min(1000) as u32, Ordering::Relaxed);
        }
    }

    /// Takes note of a piece, and of what has happened since the one before.
    pub(crate) fn piece(&mut self, piece: &Piece) {
        self.shared.prompt.store(TEXT, Ordering::Relaxed);
        // Text that was held back until the end was computed before.
        let step = match piece.token {
            Some(_) => self.follower.step(),
            None => RunStep::default(),
        };
        let text = [piece.reasoning.as_str(), &piece.text].concat();
        if piece.token.is_none() && text.is_empty() {
            return;
        }
        let mut story = self.shared.story();
        story.token(&text, step);
        if self.wanted.report {
            self.follower.look(&mut self.wall);
            story.frame(&self.wall, memory());
        }
    }

    /// Uncovers the terminal.
    pub(crate) fn close(&mut self) {
        self.screen = None;
    }

    /// Goes on with the next question of a conversation.
    pub(crate) fn again(&mut self, question: &str, interrupt: &Interrupt) -> anyhow::Result<()> {
        // The time since the last answer is nobody's cost.
        self.follower.step();
        self.shared.story().aside(&format!("\n\n{question}\n\n"));
        self.shared.prompt.store(0, Ordering::Relaxed);
        if self.wanted.screen {
            let shared = Arc::clone(&self.shared);
            let follower = self.follower.clone();
            self.screen = Some(Screen::open(shared, follower, interrupt)?);
        }
        Ok(())
    }

    /// Writes the page of the run so far.
    pub(crate) fn write_page(&self, to: &mut AtomicFile) -> anyhow::Result<()> {
        write_page(&self.shared.story(), to)
    }
}

/// Writes the page of a story.
pub(crate) fn write_page(story: &Story, to: &mut AtomicFile) -> anyhow::Result<()> {
    to.write_by(|out| page::write(story, out))
}
