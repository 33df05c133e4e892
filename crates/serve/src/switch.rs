//! Several models, of which one is loaded at a time.
//!
//! The loaded model begins texts for [`ServerLimits::switch_after`](crate::ServerLimits), and longer as
//! long as no text of another model waits. Then its running texts end, it is closed, and the model
//! of the text that has waited longest is loaded with the plan that it had from the start.

use sws::{LoadedModel, ModelSet, PrefixDisk};

use crate::ServeError;
use crate::app::App;
use crate::failure::Failure;
use crate::queue::WantedModel;
use crate::served::Served;
use crate::worker::{self, WorkerEnd};

/// Serves the models of a set, of which the first is loaded, until the queue is closed and all texts
/// have ended.
pub(crate) fn run(
    app: &App,
    set: &ModelSet,
    first: LoadedModel,
    mut disks: Vec<Option<PrefixDisk>>,
) -> Result<(), ServeError> {
    disks.resize_with(set.models().len(), || None);
    let mut loaded = Some((0, first));
    loop {
        let wanted = match loaded.take() {
            Some((number, model)) => turns(app, number, model, &mut disks[number])?,
            None => app.queue.wanted(),
        };
        let Some(WantedModel { model: number, keep }) = wanted else { return Ok(()) };
        let Some(served) = app.model(number) else { continue };
        if let Some(time) = keep {
            // The time was set before, but may have been forgotten when the model was closed.
            served.engine.keep(time);
        }
        match load(app, set, served) {
            Ok(model) => loaded = Some((number, model)),
            Err(error) => {
                served.engine.end();
                let failure = format!("the model `{}` cannot be loaded: {error}", served.id());
                app.log(&failure);
                app.queue.fail(number, &Failure::server(failure));
            }
        }
    }
}

/// Serves a loaded model until another one is needed, and drops it. Returns the other one; `None` if the
/// queue is closed.
fn turns(
    app: &App,
    number: usize,
    mut model: LoadedModel,
    disk: &mut Option<PrefixDisk>,
) -> Result<Option<WantedModel>, ServeError> {
    let Some(served) = app.model(number) else { return Ok(None) };
    loop {
        let end = worker::run(app, served, &mut model, disk);
        served.room.end();
        app.counts.unloaded();
        let next = match end? {
            WorkerEnd::Closed => None,
            // Whoever needed the other one may have left.
            WorkerEnd::Others => app.queue.wanted(),
            WorkerEnd::Idle => {
                app.log(&format!("`{}` is closed, as nobody needs it", served.id()));
                served.engine.end();
                drop(model);
                return Ok(app.queue.wanted());
            }
        };
        if next.is_some_and(|next| next.model == number) {
            continue;
        }
        served.engine.end();
        drop(model);
        return Ok(next);
    }
}

fn load(app: &App, set: &ModelSet, served: &Served) -> sws::Result<LoadedModel> {
    app.log(&format!("loading `{}`", served.id()));
    served.engine.begin_loading();
    let loaded = set.loader(served.identity.number).cancelled_by(app.loading.clone()).load()?;
    app.log(&format!("`{}` is loaded", served.id()));
    app.loaded(served.identity.number, &loaded);
    Ok(loaded)
}
