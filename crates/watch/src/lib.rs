//! Pictures of a run: frames for a terminal, and one page that needs nothing else.
//!
//! A [`Follower`] reads the [`RunWatch`](sws_engine::RunWatch) of a run: a [`Wall`] has the state
//! of every expert, a [`RunStep`] the cost of a period. A [`Story`] keeps them, with the text,
//! within a bounded amount of memory; [`recorded`] makes one of recorded routes, of which no times
//! are known. Pictures are functions of a story: [`screen::draw`] of a buffer of styled cells,
//! [`page::html`] of a page. [`live`] has the events of a server, with which a story is told
//! elsewhere. Nothing here knows a terminal, a file or a thread.
//!
//! ```
//! use sws_watch::{RunStep, Story, StorySubject};
//!
//! let mut story = Story::new(StorySubject { model: "tales".to_owned(), ..StorySubject::default() }, Vec::new());
//! story.token("Once", RunStep { seconds: 0.5, computing: 0.2, waiting: 0.3, ..RunStep::default() });
//! assert!(sws_watch::page::html(&story).contains("Once"));
//! ```
#![deny(missing_docs)]

mod follow;
pub mod live;
pub mod page;
mod recorded;
pub mod screen;
mod step;
mod story;
mod wall;

pub use follow::Follower;
pub use recorded::{Simulated, recorded};
pub use step::RunStep;
pub use story::{LEVELS, MAX_FRAME_BYTES, MAX_TOKENS, Story, StoryFrame, StorySubject, StoryToken};
pub use wall::{ExpertState, Folded, Wall};
