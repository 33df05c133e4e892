//! The engine of a served model, which is there while the model is loaded.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_engine::Gauge;

/// The engine of a served model.
#[derive(Debug, Default)]
pub(crate) struct ServedEngine(Mutex<EngineState>);

#[derive(Debug, Default)]
struct EngineState {
    loading: LoadState,
    gauge: Option<Gauge>,
    /// Number of times that the model was loaded.
    loads: u64,
    keep: KeepTime,
    /// Time at which the last text of the model ended, or at which it was loaded.
    used: Duration,
}

/// Idle time after which a model is unloaded; `None` to keep it until another one is needed.
pub(crate) type KeepTime = Option<Duration>;

/// State of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoadState {
    #[default]
    Unloaded,
    Loading,
    Loaded,
}

impl LoadState {
    /// Name of the state in answers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LoadState::Unloaded => "unloaded",
            LoadState::Loading => "loading",
            LoadState::Loaded => "loaded",
        }
    }
}

impl ServedEngine {
    pub(crate) fn state(&self) -> LoadState {
        self.lock().loading
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.state() == LoadState::Loaded
    }

    /// Counters of the run, with the number of the load; `None` if the model is not loaded.
    pub(crate) fn run(&self) -> Option<(u64, Gauge)> {
        let state = self.lock();
        Some((state.loads, state.gauge.clone()?))
    }

    /// Counters of the run, if the model is loaded.
    pub(crate) fn gauge(&self) -> Option<Gauge> {
        self.lock().gauge.clone()
    }

    pub(crate) fn begin_loading(&self) {
        self.lock().loading = LoadState::Loading;
    }

    pub(crate) fn begin(&self, gauge: Option<Gauge>, now: Duration) {
        let mut state = self.lock();
        state.loading = LoadState::Loaded;
        state.gauge = gauge;
        state.loads += 1;
        state.used = now;
    }

    /// Forgets the run. What clients asked for is over, too.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.loading = LoadState::Unloaded;
        state.gauge = None;
        state.keep = None;
    }

    /// Sets the idle time after which the model is unloaded.
    pub(crate) fn keep(&self, keep: KeepTime) {
        self.lock().keep = keep;
    }

    /// Unloads the model as soon as nothing needs it, if it is there. The next request loads it to stay.
    pub(crate) fn close_when_idle(&self) {
        let mut state = self.lock();
        let is_there = state.loading != LoadState::Unloaded;
        state.keep = is_there.then_some(Duration::ZERO);
    }

    /// Records that a text ended.
    pub(crate) fn used(&self, now: Duration) {
        self.lock().used = now;
    }

    /// Time that is left until the model is to be unloaded, if nothing needs it; `None` without an
    /// end.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        let state = self.lock();
        Some(state.used.saturating_add(state.keep?).saturating_sub(now))
    }

    fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_counts_from_the_last_text() {
        let engine = ServedEngine::default();
        let second = Duration::from_secs;
        engine.begin(None, second(3));
        assert_eq!(engine.left(second(9)), None);
        engine.keep(Some(second(10)));
        assert_eq!(engine.left(second(9)), Some(second(4)));
        engine.used(second(9));
        assert_eq!(engine.left(second(12)), Some(second(7)));
        assert_eq!(engine.left(second(40)), Some(Duration::ZERO));
        engine.keep(Some(Duration::MAX));
        assert!(engine.left(second(40)).is_some());
        engine.end();
        assert_eq!((engine.left(second(40)), engine.is_loaded()), (None, false));
        // There is nothing to close.
        engine.close_when_idle();
        engine.begin(None, second(50));
        assert_eq!(engine.left(second(60)), None);
        engine.close_when_idle();
        assert_eq!(engine.left(second(60)), Some(Duration::ZERO));
    }
}
