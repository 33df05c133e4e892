//! Models: open, begin a text, next piece, cancel, close.

use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use library::{Cancel, Generate, LoadedModel, Model, Options, Prompt, Request, Threads};

use crate::border::{guarded, object, output, sentence, string};

/// A model, loaded within a budget. It continues one text at a time.
pub struct sws_model {
    cancel: Mutex<Cancel>,
    running: Mutex<RunningModel>,
}

/// A model and its text.
struct RunningModel {
    /// Borrows from `loaded`, and is dropped before it is used otherwise.
    text: Option<Generate<'static>>,
    /// Made by `Box::into_raw`.
    loaded: NonNull<LoadedModel>,
    /// Text of the last piece, with a 0 at its end.
    piece: Vec<u8>,
}

// SAFETY: both fields belong to this value alone, and both may go to another thread, which the line after this
// has the compiler check.
unsafe impl Send for RunningModel {}
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<(Generate<'static>, LoadedModel)>();
};

impl RunningModel {
    /// Ends the text, and begins another.
    fn begin(&mut self, request: Request, cancel: Cancel) -> Result<(), String> {
        self.text = None;
        // SAFETY: made by `Box::into_raw`, and freed in `drop` only; the text that borrowed from it is gone.
        let loaded: &'static mut LoadedModel = unsafe { self.loaded.as_mut() };
        let text = loaded.generate(request).map_err(sentence)?;
        self.text = Some(text.cancelled_by(cancel));
        Ok(())
    }
}

impl Drop for RunningModel {
    fn drop(&mut self) {
        self.text = None;
        // SAFETY: made by `Box::into_raw`, freed here only, and nothing borrows from it any more.
        drop(unsafe { Box::from_raw(self.loaded.as_ptr()) });
    }
}

/// Settings of a text. A null pointer stands for the defaults.
#[repr(C)]
pub struct sws_settings {
    /// Seed of the random numbers; below 0 for a new one.
    pub seed: i64,
    /// Temperature of sampling; 0 takes the likeliest token, below 0 stands for the model's own.
    pub temperature: f32,
    /// Maximum number of new tokens; 0 stands for the model's own, or 256.
    pub max_new_tokens: u32,
}

/// A token and the text that it completes.
#[repr(C)]
pub struct sws_piece {
    /// The token; -1 for text that was held back until the end.
    pub token: i64,
    /// The text, UTF-8 with a 0 at its end, valid until the next call with the model. It is empty while a
    /// character is incomplete.
    pub text: *const c_char,
    /// Bytes of the text, without the 0.
    pub text_len: usize,
}

/// Loads a model within a budget: a shard directory, a checkpoint, a GGUF file or an id. Returns NULL on
/// failure.
///
/// `ram` is the memory of the whole process, such as 16GiB, 80%, min or auto; NULL for auto, the memory that is
/// free. `threads` of 0 stands for one per core, `context` of 0 for the positions that fit in memory.
///
/// # Safety
///
/// The pointers are null or lead to strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_open(
    model: *const c_char,
    ram: *const c_char,
    threads: u32,
    context: u32,
) -> *mut sws_model {
    guarded(null_mut(), || {
        // SAFETY: strings, as the caller vouches.
        let name = unsafe { string(model, "model") }?;
        let ram = match ram.is_null() {
            true => "auto",
            // SAFETY: a string, as the caller vouches.
            false => unsafe { string(ram, "ram") }?,
        };
        let loaded = load(name, ram, threads, context).map_err(sentence)?;
        let loaded = NonNull::from(Box::leak(Box::new(loaded)));
        let running = RunningModel { text: None, loaded, piece: Vec::new() };
        let model = sws_model { cancel: Mutex::default(), running: Mutex::new(running) };
        Ok(Box::into_raw(Box::new(model)))
    })
}

fn load(name: &str, ram: &str, threads: u32, context: u32) -> library::Result<LoadedModel> {
    let model = Model::open(name)?;
    let context = (context > 0).then_some(context as usize);
    let loader = model.with(Options { context, ..Options::default() }).ram(ram);
    match threads {
        0 => loader.load(),
        count => loader.threads(&Threads::start(count as usize)?).load(),
    }
}

/// Begins to continue a text, in place of the one before. Returns 0, or -1 on failure.
///
/// # Safety
///
/// The model is open; the other pointers are null or lead to a string and to settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_begin(
    model: *mut sws_model,
    prompt: *const c_char,
    settings: *const sws_settings,
) -> c_int {
    guarded(-1, || {
        // SAFETY: a string, as the caller vouches.
        let prompt = unsafe { string(prompt, "prompt") }?.to_owned();
        // SAFETY: a model and settings, as the caller vouches.
        unsafe { begin(model, Prompt::Text(prompt), settings) }
    })
}

/// Begins to continue tokens, in place of the text before. Returns 0, or -1 on failure.
///
/// # Safety
///
/// The model is open; the other pointers are null or lead to `count` tokens and to settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_begin_tokens(
    model: *mut sws_model,
    tokens: *const u32,
    count: usize,
    settings: *const sws_settings,
) -> c_int {
    guarded(-1, || {
        let tokens = match (tokens.is_null(), count) {
            (_, 0) => Vec::new(),
            (true, _) => return Err(crate::border::null("tokens")),
            // SAFETY: so many tokens, as the caller vouches.
            (false, _) => unsafe { std::slice::from_raw_parts(tokens, count) }.to_vec(),
        };
        // SAFETY: a model and settings, as the caller vouches.
        unsafe { begin(model, Prompt::Tokens(tokens), settings) }
    })
}

/// # Safety
///
/// The model is open, and the settings are null or settings.
unsafe fn begin(
    model: *const sws_model,
    prompt: Prompt,
    settings: *const sws_settings,
) -> Result<c_int, String> {
    // SAFETY: an open model, as the caller vouches.
    let model = unsafe { object(model, "model") }?;
    let mut request = Request::from(prompt);
    // SAFETY: null or settings, as the caller vouches.
    if let Some(settings) = unsafe { settings.as_ref() } {
        let &sws_settings { seed, temperature, max_new_tokens } = settings;
        request.options.seed = u64::try_from(seed).ok();
        request.options.temperature =
            (temperature.is_nan() || temperature >= 0.0).then_some(temperature);
        request.options.max_new_tokens = (max_new_tokens > 0).then_some(max_new_tokens as usize);
    }
    let mut running = running(model)?;
    let cancel = Cancel::new();
    *model.cancel.lock().unwrap_or_else(PoisonError::into_inner) = cancel.clone();
    running.begin(request, cancel)?;
    Ok(0)
}

/// Computes the next piece of the text. Returns 1 with a piece, 0 once the text is over, or -1 on failure. A
/// computation that fails ends the text; a wrong call leaves it as it is.
///
/// # Safety
///
/// The model is open; `piece` is null or leads to a piece, which is filled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_next(model: *mut sws_model, piece: *mut sws_piece) -> c_int {
    guarded(-1, || {
        // SAFETY: an open model, as the caller vouches.
        let model = unsafe { object(model, "model") }?;
        let piece = output(piece, "piece")?;
        let mut running = running(model)?;
        let next = running.text.as_mut().and_then(Iterator::next).transpose();
        let next = next.map_err(sentence)?;
        let Some(next) = next else {
            running.text = None;
            // SAFETY: memory of a piece, as the caller vouches.
            unsafe { piece.write(sws_piece { token: -1, text: null(), text_len: 0 }) };
            return Ok(0);
        };
        running.piece.clear();
        running.piece.extend_from_slice(next.text.as_bytes());
        running.piece.push(0);
        let next = sws_piece {
            token: next.token.map_or(-1, i64::from),
            text: running.piece.as_ptr().cast(),
            text_len: next.text.len(),
        };
        // SAFETY: memory of a piece, as the caller vouches.
        unsafe { piece.write(next) };
        Ok(1)
    })
}

/// Ends the text at the next layer, so that sws_next soon returns 0. May be called by any thread while
/// another one is in sws_next, but not by a signal handler.
///
/// # Safety
///
/// The model is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_cancel(model: *const sws_model) {
    guarded((), || {
        // SAFETY: an open model, as the caller vouches.
        let model = unsafe { object(model, "model") }?;
        model.cancel.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        Ok(())
    });
}

/// Closes a model and frees its memory. NULL is ignored.
///
/// # Safety
///
/// The model is null, or was opened and not closed since.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sws_close(model: *mut sws_model) {
    guarded((), || {
        if !model.is_null() {
            // SAFETY: made by `sws_open`, and not closed, as the caller vouches.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    });
}

/// The model and its text, which one thread uses at a time.
fn running(model: &sws_model) -> Result<MutexGuard<'_, RunningModel>, String> {
    match model.running.try_lock() {
        Ok(running) => Ok(running),
        Err(TryLockError::WouldBlock) => {
            Err("another thread uses the model; use it in one thread at a time".to_owned())
        }
        Err(TryLockError::Poisoned(_)) => Err("the model has failed before; close it".to_owned()),
    }
}
