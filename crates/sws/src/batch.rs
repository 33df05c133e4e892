//! Continuous batching: several texts in shared passes, which begin and end at any time.

mod portion;
mod reuse;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sws_engine::{Waiter, Witness};
use sws_format::{Clock, Pass, Progress};
use sws_model::{
    CausalLm, Chunk, ForwardError, Observer, Routed, SourceError, StepOutcome, check_tokens,
};
use sws_text::{Generation, Position, TokenMask, Tokenizer};

use crate::prefix_cache::{AnswerKey, KnownAnswer, PrefixCache, PrefixEntry};
use crate::prefix_disk::PrefixDisk;
use crate::rank::PromptScores;
use crate::sequence::Sequence;
use crate::turns::Turns;
use crate::writer::TokenWriter;
use crate::{Cancel, End, Error, Generated, Piece, Rank, Result};
use portion::Portion;
use reuse::Begun;

/// Tokens that follow from each other without a choice, and go through a step together, at most.
const FORCED: usize = 256;

/// Continuous batching: texts share passes, in which each expert is read once for all of them. Each has the
/// output that it has alone.
///
/// Texts are [added](Self::add) and cancelled at any time, and advanced by [`step`](Self::step). An
/// error ends one text and leaves the others as they are.
pub struct Batch<'m> {
    model: &'m mut Sequence,
    tokenizer: Option<&'m Tokenizer>,
    waiter: Option<Waiter>,
    running: Vec<Running<'m>>,
    /// Sequences without a text. They are empty.
    idle: Vec<usize>,
    /// What was computed for texts, apart from sequences.
    prefixes: PrefixCache,
    disk: Option<PrefixDisk>,
    /// Bytes held by sequences and what is kept, at most; `None` if they have to be counted.
    held: Option<u64>,
    /// Bytes that there is room for.
    room: u64,
    /// True if what is kept can be cut anywhere.
    goes_back: bool,
    /// Bytes of experts in memory, if they get what texts and what is kept do not need.
    experts: u64,
    step: StepOutcome,
    clock: Clock,
    turns: Option<Turns>,
    portion: Portion,
}

/// A text to continue among others.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The tokens of the prompt.
    pub tokens: Vec<u32>,
    /// The [resolved](crate::Model::generation) options; without a limit of new tokens, the text goes
    /// on as far as the context allows.
    pub generation: Generation,
    /// The place of the new text: at the start of an answer, or in the middle of a text.
    pub position: Position,
    /// Numbers added to the logits of tokens before a token is chosen.
    pub bias: Vec<(u32, f32)>,
    /// Restricts the tokens that may be chosen. Those that it forces are computed in one pass, unless
    /// `ranks` asks for the probabilities of each.
    pub constraint: Option<Arc<dyn TokenMask>>,
    /// Number of likeliest tokens to report beside each token, with their probabilities; `None` for
    /// no probabilities at all.
    pub ranks: Option<usize>,
    /// True if the tokens of the prompt are ranked, too. A budget has room for that if
    /// [`Needs::all_logits`](crate::Needs::all_logits) was declared.
    pub prompt_ranks: bool,
    /// Sees the routes and logits of all its tokens, for a certificate. Nothing of earlier texts is then
    /// used again, and there may be neither a constraint nor a bias.
    pub witness: Option<Arc<Mutex<Witness>>>,
    /// True for a text that is hardly ever continued, such as a title for others: what is kept of it goes
    /// sooner, until it has been used.
    pub short_lived: bool,
    /// The owner of the text. What was computed for a text is used again for texts of its owner that
    /// begin as it does. The same text again, such as one that was cancelled, goes on where it was, if
    /// it has neither a constraint nor ranks.
    pub owner: u64,
    /// Cancels the text.
    pub cancel: Cancel,
}

impl BatchRequest {
    /// A request without anything special: in the middle of a text, and nobody's in particular.
    pub fn new(tokens: Vec<u32>, generation: Generation) -> BatchRequest {
        BatchRequest {
            tokens,
            generation,
            position: Position::Middle,
            bias: Vec::new(),
            constraint: None,
            ranks: None,
            prompt_ranks: false,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: Cancel::default(),
        }
    }
}

/// Progress of a text in a step.
#[derive(Debug)]
pub enum Event {
    /// A part of its prompt was computed.
    Prompt(Progress),
    /// Tokens of its prompt, from the second on, with their probabilities.
    Ranked(Vec<Rank>),
    /// The tokens that the same text had before.
    Resumed(Vec<Piece>),
    /// A token was chosen, or text that was held back is complete.
    Piece(Piece, Option<Rank>),
    /// The text is over.
    Ended(Box<Result<Generated>>),
}

/// A text among others.
#[derive(Debug)]
struct Running<'m> {
    number: usize,
    sequence: usize,
    /// Tokens that continue its sequence: those of the prompt, then the last one chosen with those that
    /// had to follow.
    next: Vec<u32>,
    /// The tokens of the prompt.
    prompt: Vec<u32>,
    owner: u64,
    began: Duration,
    /// Time of its last token.
    heard: Duration,
    writer: TokenWriter<'m>,
    bias: Vec<(u32, f32)>,
    ranks: Option<usize>,
    prompt_ranks: bool,
    witness: Option<Arc<Mutex<Witness>>>,
    short_lived: bool,
    cancel: Cancel,
    /// With what it can be continued when it is asked for again.
    key: Option<AnswerKey>,
    /// A text, by its number, that computes so many of its first tokens: it waits for that one.
    follows: Option<(usize, usize)>,
    /// Numbers of tokens at which its state is kept, ascending.
    marks: Vec<usize>,
    /// Tokens of the same text before, and its end if it had one: not told yet.
    resumed: (Vec<Piece>, Option<End>),
}

/// State of a text's sequence after a step.
struct SequencePlace {
    position: usize,
    limit: usize,
    now: Duration,
}

impl<'m> Batch<'m> {
    /// A batch of at most `most` texts.
    pub(crate) fn new(
        model: &'m mut Sequence,
        tokenizer: Option<&'m Tokenizer>,
        waiter: Option<Waiter>,
        most: usize,
    ) -> Result<Batch<'m>> {
        let idle = model.several(most).ok_or(Error::OneText)?;
        let lm = model.batch();
        let room = lm.room();
        let goes_back = lm.goes_back();
        let portion = Portion::new(lm.longest_pass());
        let clock = waiter.as_ref().map_or_else(Clock::real, |waiter| waiter.clock().clone());
        Ok(Batch {
            model,
            tokenizer,
            waiter,
            running: Vec::new(),
            idle,
            prefixes: PrefixCache::new(),
            disk: None,
            held: None,
            room,
            goes_back,
            experts: 0,
            step: StepOutcome::default(),
            clock,
            turns: None,
            portion,
        })
    }

    /// Lets texts go on one at a time, in turns, where that costs less by what passes have taken so
    /// far and by a forecast of what the texts read: a step then continues one text. None waits longer
    /// than `gap` between tokens for the turns of others. Without this a step advances every text.
    pub fn with_turns(mut self, gap: Duration) -> Batch<'m> {
        self.turns = Some(Turns::new(gap));
        self
    }

    /// True if there is no text.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Number of positions that the texts hold.
    pub fn positions(&self) -> usize {
        self.running.iter().map(Running::done).sum()
    }

    /// True if a text can be added; one with the ranks of its prompt needs the first sequence.
    pub fn has_room(&self, prompt_ranks: bool) -> bool {
        match prompt_ranks {
            true => self.idle.contains(&0),
            false => !self.idle.is_empty(),
        }
    }

    /// Says that no text has structured output from now on, so that experts get the memory that was
    /// [planned](crate::Needs::structured) for structured output, or that some may have one: that memory is
    /// then free. At first it is.
    pub fn lend_structured(&mut self, is_idle: bool) {
        self.model.batch().lend_structured(is_idle);
    }

    /// Adds a text, with a number of the caller's choice. Returns the number of its tokens that are
    /// known from another text, or that another is about to compute. Fails if its tokens cannot be
    /// continued.
    ///
    /// # Panics
    ///
    /// If there is no [room](Self::has_room).
    pub fn add(&mut self, number: usize, text: BatchRequest) -> Result<usize> {
        let BatchRequest { tokens: prompt, generation, position, owner, .. } = text;
        let limit = self.model.limit();
        let vocab = self.model.vocab();
        check_tokens(&prompt, 0, limit, vocab)?;
        if let Some(&(token, _)) = text.bias.iter().find(|(token, _)| *token as usize >= vocab) {
            return Err(ForwardError::UnknownToken { token, last: vocab - 1 }.into());
        }
        let tokenizer = self.tokenizer.map(|tokenizer| (tokenizer, position));
        let mut writer = TokenWriter::new(&[&prompt], vocab, &generation, tokenizer)?;
        if let Some(constraint) = text.constraint {
            writer.restrict(constraint.begin());
        }
        let is_new = text.witness.is_some();
        let repeats =
            text.ranks.is_none() && !text.prompt_ranks && !is_new && !writer.is_restricted();
        let key = repeats.then(|| AnswerKey::new(&generation, position, &text.bias));
        let sequence = self.take_idle(text.prompt_ranks);
        // Those whose every token has to be seen take nothing from others.
        let anew = text.prompt_ranks || is_new;
        let made = key.as_ref().and_then(|key| self.resume(sequence, &prompt, owner, key));
        let made = made.unwrap_or_default();
        let (begun, next, known) = match made.last() {
            Some(&last) => (Begun::default(), vec![last], prompt.len()),
            None => {
                let begun = self.begin(sequence, &prompt, owner, anew);
                let next = prompt[begun.known..].to_vec();
                let known = begun.spared();
                (begun, next, known)
            }
        };
        let mut resumed = (Vec::with_capacity(made.len()), None);
        for (position, token) in (prompt.len()..).zip(made) {
            // Tokens that were chosen once are tokens of the model.
            let (piece, end) = writer.take(token).expect("a token that was chosen before");
            resumed.0.push(piece);
            resumed.1 = end_at(&writer, end, position, limit);
        }
        let began = self.clock.now();
        self.running.push(Running {
            number,
            sequence,
            next,
            prompt,
            owner,
            began,
            heard: began,
            writer,
            bias: text.bias,
            ranks: text.ranks,
            prompt_ranks: text.prompt_ranks,
            witness: text.witness,
            short_lived: text.short_lived,
            cancel: text.cancel,
            key,
            follows: begun.follows,
            marks: begun.marks,
            resumed,
        });
        Ok(known)
    }

    /// Takes an idle sequence, or the first.
    fn take_idle(&mut self, first: bool) -> usize {
        // The first stays for texts that need it.
        let of_text = |&at: &usize| !first || self.idle[at] == 0;
        let at = (0..self.idle.len()).filter(of_text).max_by_key(|&at| self.idle[at]);
        self.idle.swap_remove(at.expect("there is room for the text"))
    }

    /// Resumes an identical earlier request. Returns the tokens that it had generated.
    fn resume(
        &mut self,
        sequence: usize,
        prompt: &[u32],
        owner: u64,
        key: &AnswerKey,
    ) -> Option<Vec<u32>> {
        let at = self.prefixes.find_answer(prompt, owner, key)?;
        self.held = None;
        // What goes on is kept again at its end. Until then nothing is shared, and has to be copied.
        let entry = self.prefixes.take(at);
        let begun = self.model.begin_with(sequence, &entry.prefix, entry.tokens.len());
        entry.answer.filter(|_| begun).map(|answer| answer.made)
    }

    /// Advances all texts, or with [turns](Self::with_turns) some: each gets a token, or a part of its
    /// prompt is computed. `each` gets the numbers of the texts with what happened to them.
    pub fn step(&mut self, each: &mut dyn FnMut(usize, Event)) {
        let running = self.without_cancelled(each);
        self.running = self.tell_resumed(running, each);
        self.begin_followers();
        let mut running = std::mem::take(&mut self.running);
        let parts = self.parts(&running);
        self.keep_states(&mut running, &parts);
        let continued = running.iter().zip(&parts).filter(|(_, part)| **part > 0);
        let growing: Vec<_> = continued.map(|(text, &part)| (text.sequence, part)).collect();
        self.make_room(&growing, 0);
        let began = self.clock.now();
        let waited = self.waited();
        let tokens = parts.iter().sum();
        let together = |(text, part): &(&Running<'_>, &usize)| **part > 0 && !text.is_scored();
        let (chunks, cancels): (Vec<Chunk<'_>>, Vec<Cancel>) = running
            .iter()
            .zip(&parts)
            .filter(together)
            .map(|(text, &part)| {
                let chunk = Chunk { sequence: text.sequence, tokens: &text.next[..part] };
                (chunk, text.cancel.clone())
            })
            .unzip();
        let witnesses =
            running.iter().filter_map(|text| Some((text.sequence, text.witness.clone()?)));
        let witnesses = witnesses.collect();
        if !chunks.is_empty() {
            // A wait for a read ends early only if nobody else needs it.
            let one = Some(&cancels[0]).filter(|one| cancels.iter().all(|other| other.is(one)));
            if let Some(cancel) = one {
                cancel.attach(self.waiter.as_ref());
            }
            let mut watch = BatchObserver { cancels: &cancels, scores: None, witnesses };
            self.model.step(&chunks, &mut watch, &mut self.step);
            if let Some(cancel) = one {
                cancel.detach();
            }
            let time = self.clock.now() - began;
            let waited = self.waited() - waited;
            let prompts = running.iter().zip(&parts).filter(|(text, _)| !text.has_begun());
            let prompts = prompts.map(|(_, &part)| part).sum();
            self.portion.passed(prompts, tokens, time, waited);
            self.pay_rent(waited);
            if let Some(turns) = &mut self.turns {
                turns.passed(tokens, time, waited);
            }
        }
        let mut chunk = 0;
        for (mut text, part) in running.into_iter().zip(parts) {
            let end = if part == 0 {
                Ok(None)
            } else if text.is_scored() {
                self.score(&mut text, part, each)
            } else {
                chunk += 1;
                self.stepped(&mut text, part, chunk - 1, each)
            };
            match end {
                Ok(None) => self.running.push(text),
                Ok(Some(end)) => self.end(text, Ok(end), each),
                Err(error) => self.end(text, Err(error), each),
            }
        }
    }

    /// Time spent waiting for reads.
    fn waited(&self) -> Duration {
        self.waiter.as_ref().map_or(Duration::ZERO, |waiter| waiter.stalls().time)
    }

    /// Numbers of tokens by which texts are continued in a step; 0 for those that wait.
    fn parts(&mut self, running: &[Running<'_>]) -> Vec<usize> {
        let begun = running.iter().filter(|text| text.has_begun()).count();
        let mut parts = parts(running, self.portion.tokens(begun), self.goes_back);
        let Some(turns) = &mut self.turns else { return parts };
        // A part of a prompt needs most experts: all texts go with it.
        if !running.iter().all(Running::has_begun) {
            turns.end_round();
            return parts;
        }
        let texts: Vec<_> = running.iter().map(|text| (text.number, text.heard)).collect();
        let sequences: Vec<_> = running.iter().map(|text| text.sequence).collect();
        let forecast = |turn| self.model.batch().expected_reads(&sequences, turn);
        if let Some(number) = turns.next(&texts, forecast) {
            let others = running.iter().zip(&mut parts).filter(|(text, _)| text.number != number);
            others.for_each(|(_, part)| *part = 0);
        }
        parts
    }

    /// Takes the running texts, and ends those that were cancelled.
    fn without_cancelled(&mut self, each: &mut dyn FnMut(usize, Event)) -> Vec<Running<'m>> {
        let (over, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.running).into_iter().partition(|t| t.cancel.is_cancelled());
        over.into_iter().for_each(|text| self.end(text, Ok(End::Cancelled), each));
        running
    }

    /// Tells what texts had come to before, and ends those that had ended.
    fn tell_resumed(
        &mut self,
        running: Vec<Running<'m>>,
        each: &mut dyn FnMut(usize, Event),
    ) -> Vec<Running<'m>> {
        let mut rest = Vec::with_capacity(running.len());
        for mut text in running {
            let (pieces, end) = std::mem::take(&mut text.resumed);
            if !pieces.is_empty() {
                text.heard = self.clock.now();
                text.writer.made.first_token = Some(text.heard - text.began);
                let total = text.prompt.len() as u64;
                each(text.number, Event::Prompt(Progress { done: total, total }));
                each(text.number, Event::Resumed(pieces));
            }
            match end {
                Some(end) => self.end(text, Ok(end), each),
                None => rest.push(text),
            }
        }
        rest
    }

    /// Takes the result of a step for a text, whose next `part` tokens were a chunk of it. Returns the
    /// reason if the text is over.
    fn stepped(
        &mut self,
        text: &mut Running<'_>,
        part: usize,
        chunk: usize,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        let place = self.place(text.sequence);
        match self.step.take(chunk) {
            Ok(logits) => text.continued(part, logits, place, each),
            Err(error) => text.failed(error),
        }
    }

    /// Continues a text by a part of its prompt, whose tokens are ranked.
    fn score(
        &mut self,
        text: &mut Running<'_>,
        part: usize,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        // A text that has just ended has counted its room anew, without this part.
        self.make_room(&[(text.sequence, part)], 0);
        let top = text.ranks.unwrap_or(0);
        let mut scores = PromptScores::new(&text.next, self.model.len(), self.model.vocab(), top);
        text.cancel.attach(self.waiter.as_ref());
        let cancels = std::slice::from_ref(&text.cancel);
        let mut watch = BatchObserver { cancels, scores: Some(&mut scores), witnesses: Vec::new() };
        let scored = self.model.score(&text.next[..part], &mut watch);
        text.cancel.detach();
        if let Err(error) = scored {
            return text.failed(error);
        }
        let (ranks, mut last) = scores.into_parts();
        each(text.number, Event::Ranked(ranks));
        let place = self.place(text.sequence);
        text.continued(part, &mut last, place, each)
    }

    fn place(&mut self, sequence: usize) -> SequencePlace {
        let position = self.model.batch().sequence_len(sequence);
        let limit = self.model.limit();
        SequencePlace { position, limit, now: self.clock.now() }
    }

    /// Ends a text. What was computed of it stays known, unless it has failed; a pass that was cut off
    /// is undone.
    fn end(&mut self, mut text: Running<'_>, end: Result<End>, each: &mut dyn FnMut(usize, Event)) {
        let Running { sequence, owner, short_lived, .. } = text;
        // The caller counts its memory until it hears of the end.
        text.writer.forget_restriction();
        if end.is_ok() {
            let mut answer = None;
            let mut tokens = std::mem::take(&mut text.prompt);
            let made = &text.writer.made.tokens;
            let len = self.model.batch().sequence_len(sequence);
            let len = self.model.truncate_one(sequence, len);
            if !made.is_empty() && len + 1 == tokens.len() + made.len() {
                answer = text.key.take().map(|key| KnownAnswer { key, made: made.clone() });
            }
            tokens.extend(made);
            tokens.truncate(len);
            if let Some(prefix) = self.model.batch().prefix(sequence) {
                let mut entry = PrefixEntry::new(prefix, tokens, owner);
                (entry.short_lived, entry.answer) = (short_lived, answer);
                self.keep_prefix(entry);
            }
        }
        self.prefixes.end_trail(text.number);
        self.model.release(sequence);
        self.idle.push(sequence);
        self.held = None;
        let made = end.map(|end| {
            if let Some(held_back) = text.writer.end(end) {
                each(text.number, Event::Piece(held_back, None));
            }
            text.writer.made
        });
        each(text.number, Event::Ended(Box::new(made)));
    }
}

/// The reason why a text is over with its last token, which has this position.
fn end_at(
    writer: &TokenWriter<'_>,
    end: Option<End>,
    position: usize,
    limit: usize,
) -> Option<End> {
    match end {
        Some(end) => Some(end),
        None if writer.is_complete() => Some(End::Length),
        None if position == limit => Some(End::Context),
        None => None,
    }
}

/// Numbers of tokens by which texts are continued in a step; 0 for those that wait. Prompts get so many
/// tokens together.
fn parts(texts: &[Running<'_>], prompts: usize, goes_back: bool) -> Vec<usize> {
    let mut room = prompts;
    let part = |text: &Running<'_>| {
        if text.follows.is_some() {
            return 0;
        }
        // A text that has begun gets one in any case.
        let least = usize::from(text.next.len() == 1 || text.has_begun());
        let rest = text.next.len();
        // A state is kept before the last tokens of a prompt, if there is no other way back.
        let last =
            if goes_back || rest <= portion::LEAST { 0 } else { (rest - 1) % portion::LEAST + 1 };
        let part = (rest - last).min(room.max(least)).min(text.until_mark());
        room -= if part > 1 { part } else { 0 };
        part
    };
    texts.iter().map(part).collect()
}

impl Running<'_> {
    /// Tokens in its sequence, while its prompt is computed.
    fn done(&self) -> usize {
        match self.has_begun() {
            true => self.prompt.len() + self.writer.made.tokens.len() - self.next.len(),
            false if self.follows.is_some() => 0,
            false => self.prompt.len() - self.next.len(),
        }
    }

    /// Adds a number of tokens at which its state is kept.
    fn mark(&mut self, tokens: usize) {
        if let Err(at) = self.marks.binary_search(&tokens) {
            self.marks.insert(at, tokens);
        }
    }

    /// Tokens before the next mark.
    fn until_mark(&self) -> usize {
        let done = self.done();
        let next = self.marks.iter().find(|&&mark| mark > done);
        next.map_or(usize::MAX, |mark| mark - done)
    }

    /// True if it has a new token.
    fn has_begun(&self) -> bool {
        !self.writer.made.tokens.is_empty()
    }

    /// True if its next tokens are of a prompt that is ranked.
    fn is_scored(&self) -> bool {
        self.prompt_ranks && !self.has_begun()
    }

    /// Chooses the next token, if the prompt ends with the first `part` of its next tokens. Returns
    /// the reason if the text is over.
    fn continued(
        &mut self,
        part: usize,
        logits: &mut [f32],
        place: SequencePlace,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        self.next.drain(..part);
        self.heard = place.now;
        if !self.has_begun() {
            let done = (self.prompt.len() - self.next.len()) as u64;
            let total = self.prompt.len() as u64;
            each(self.number, Event::Prompt(Progress { done, total }));
        }
        if !self.next.is_empty() {
            return Ok(None);
        }
        if self.writer.is_complete() {
            return Ok(Some(End::Length));
        }
        if let Some(witness) = &self.witness {
            locked(witness).logits(place.position - 1, logits);
        }
        // Choosing a token overwrites the logits.
        let raw = self.ranks.map(|top| (logits.to_vec(), top));
        self.bias.iter().for_each(|&(token, bias)| logits[token as usize] += bias);
        let (piece, end) = self.writer.choose(logits, place.position)?;
        let Generated { tokens, first_token, .. } = &mut self.writer.made;
        first_token.get_or_insert_with(|| place.now - self.began);
        self.next.extend(tokens.last());
        let rank = raw.zip(piece.token).map(|((raw, top), token)| Rank::of(&raw, token, top));
        each(self.number, Event::Piece(piece, rank));
        let mut position = place.position;
        let mut end = end_at(&self.writer, end, position, place.limit);
        // With probabilities, each token needs the logits of the one before.
        while end.is_none() && self.ranks.is_none() && self.next.len() < FORCED {
            let mut forced = self.writer.forced()?;
            if forced.is_empty() {
                break;
            }
            forced.truncate(FORCED - self.next.len());
            for token in forced {
                let (piece, over) = self.writer.take(token)?;
                self.next.push(token);
                each(self.number, Event::Piece(piece, None));
                position += 1;
                end = end_at(&self.writer, over, position, place.limit);
                if end.is_some() {
                    break;
                }
            }
        }
        Ok(end)
    }

    /// Takes a failed pass, and tells a cancelled text from a failed one.
    fn failed(&self, error: ForwardError) -> Result<Option<End>> {
        match error {
            ForwardError::Source(_) if self.cancel.is_cancelled() => Ok(Some(End::Cancelled)),
            error => Err(error.into()),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.model.batch().lend_context(None);
        self.model.batch().lend_structured(false);
        let running = self.running.iter().map(|text| text.sequence);
        running.chain(self.idle.iter().copied()).for_each(|sequence| self.model.release(sequence));
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("running", &self.running).finish_non_exhaustive()
    }
}

fn locked(witness: &Mutex<Witness>) -> MutexGuard<'_, Witness> {
    witness.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a pass at a layer once all its texts are cancelled, and passes logits on.
struct BatchObserver<'a, 't> {
    cancels: &'a [Cancel],
    scores: Option<&'a mut PromptScores<'t>>,
    /// Witnesses with the numbers of their sequences.
    witnesses: Vec<(usize, Arc<Mutex<Witness>>)>,
}

impl Observer for BatchObserver<'_, '_> {
    fn layer_begins(&mut self, _: &Pass, _: usize, _: &[f32]) -> Result<(), SourceError> {
        match self.cancels.iter().all(Cancel::ends_passes) {
            true => Err("the pass was cancelled".into()),
            false => Ok(()),
        }
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        for (sequence, witness) in &self.witnesses {
            for span in pass.spans.iter().filter(|span| span.sequence == *sequence) {
                locked(witness).note_routed(span, layer, routed);
            }
        }
        Ok(())
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        if let Some(scores) = &mut self.scores {
            scores.take(first, logits);
        }
    }
}
