//! A step of a batch: the texts in its pass, and their results.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sws_engine::Witness;
use sws_format::{Pass, Progress};
use sws_model::{CausalLm, Chunk, ForwardError, Observer, Routed, SourceError};

use super::text::{Running, SequencePlace, locked};
use super::{Batch, Event, portion};
use crate::open::pooling::PooledStates;
use crate::prefix_cache::{KnownAnswer, PrefixEntry};
use crate::run::rank::PromptScores;
use crate::{Cancel, End, Result};

impl<'m> Batch<'m> {
    /// Advances all texts, or only some of them with [turns](Self::with_turns). Each advanced text
    /// gets a token, or a part of its prompt is computed. `each` gets every event with the number
    /// of its text.
    pub fn step(&mut self, each: &mut dyn FnMut(usize, Event)) {
        let running = self.without_cancelled(each);
        self.running = self.tell_resumed(running, each);
        self.begin_followers(each);
        let mut running = std::mem::take(&mut self.running);
        let parts = self.parts(&running);
        self.keep_states(&mut running, &parts);
        let mut growing = Vec::with_capacity(running.len());
        for (text, &part) in running.iter().zip(&parts) {
            if part > 0 {
                growing.push((text.sequence, part));
            }
        }
        self.make_room(&growing, 0);
        self.run_pass(&running, &parts);
        let mut chunk = 0;
        for (mut text, part) in running.into_iter().zip(parts) {
            let end = if part == 0 {
                Ok(None)
            } else if text.is_scored() && text.request.pooling.is_some() {
                self.pool(&mut text, part, each)
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

    /// Continues texts by these parts in shared passes, except those whose prompts are ranked.
    fn run_pass(&mut self, running: &[Running<'_>], parts: &[usize]) {
        let began = self.clock.now();
        let waited = self.waited();
        let mut chunks = Vec::with_capacity(running.len());
        let mut cancels = Vec::with_capacity(running.len());
        let mut witnesses = Vec::new();
        let mut prompt_tokens = 0;
        for (text, &part) in running.iter().zip(parts) {
            if let Some(witness) = &text.request.witness {
                witnesses.push((text.sequence, Arc::clone(witness)));
            }
            if !text.has_begun() {
                prompt_tokens += part;
            }
            if part > 0 && !text.is_scored() {
                chunks.push(Chunk { sequence: text.sequence, tokens: &text.next[..part] });
                cancels.push(text.request.cancel.clone());
            }
        }
        if chunks.is_empty() {
            return;
        }
        // A cancelled text may end a wait early only if it is alone in the pass.
        let first = &cancels[0];
        let is_alone = cancels.iter().all(|other| other.is(first));
        if is_alone {
            first.attach(self.waiter.as_ref());
        }
        let mut watch = BatchObserver { cancels: &cancels, scores: None, pooled: None, witnesses };
        self.model.step(&chunks, &mut watch, &mut self.step);
        if is_alone {
            first.detach();
        }
        let time = self.clock.now() - began;
        let waited = self.waited() - waited;
        let tokens = parts.iter().sum();
        self.portion.passed(prompt_tokens, tokens, time, waited);
        self.pay_rent(waited);
        if let Some(turns) = &mut self.turns {
            turns.passed(tokens, time, waited);
        }
    }

    /// Time spent waiting for reads.
    fn waited(&self) -> Duration {
        match &self.waiter {
            Some(waiter) => waiter.stalls().time,
            None => Duration::ZERO,
        }
    }

    /// Number of tokens of each text in the next step; 0 for texts that wait.
    fn parts(&mut self, running: &[Running<'_>]) -> Vec<usize> {
        let begun = running.iter().filter(|text| text.has_begun()).count();
        let mut parts = parts(running, self.portion.tokens(begun), self.goes_back);
        let Some(turns) = &mut self.turns else { return parts };
        // A part of a prompt needs most experts, so all texts go with it.
        if !running.iter().all(Running::has_begun) {
            turns.end_round();
            return parts;
        }
        let texts: Vec<_> = running.iter().map(|text| (text.number, text.heard)).collect();
        let sequences: Vec<_> = running.iter().map(|text| text.sequence).collect();
        let forecast = |turn| self.model.lm.streamer()?.expected_reads(&sequences, turn);
        if let Some(number) = turns.next(&texts, forecast) {
            for (text, part) in running.iter().zip(&mut parts) {
                if text.number != number {
                    *part = 0;
                }
            }
        }
        parts
    }

    /// Takes the running texts, and ends those that were cancelled.
    fn without_cancelled(&mut self, each: &mut dyn FnMut(usize, Event)) -> Vec<Running<'m>> {
        let (over, running): (Vec<_>, Vec<_>) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|text| text.request.cancel.is_cancelled());
        for text in over {
            self.end(text, Ok(End::Cancelled), each);
        }
        running
    }

    /// Reports the tokens of resumed texts, and ends those that were complete.
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
                let total = text.request.tokens.len() as u64;
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

    /// Handles the result of a step for a text, whose next `part` tokens were a chunk of it.
    /// Returns the reason if the text has ended.
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
        let top = text.request.ranks.unwrap_or(0);
        let mut scores = PromptScores::new(&text.next, self.model.len(), self.model.vocab(), top);
        if let Err(error) = self.scored(text, part, Some(&mut scores), None) {
            return text.failed(error);
        }
        let (ranks, mut last) = scores.into_parts();
        each(text.number, Event::Ranked(ranks));
        let place = self.place(text.sequence);
        text.continued(part, &mut last, place, each)
    }

    /// Continues a text by a part of its prompt, whose states are pooled.
    fn pool(
        &mut self,
        text: &mut Running<'_>,
        part: usize,
        each: &mut dyn FnMut(usize, Event),
    ) -> Result<Option<End>> {
        let mut pooled = text.pooled.take();
        let scored = self.scored(text, part, None, pooled.as_mut());
        text.pooled = pooled;
        match scored {
            Ok(()) => Ok(text.pooled(part, self.clock.now(), each)),
            Err(error) => text.failed(error),
        }
    }

    /// Computes a part of a prompt, of whose tokens the logits or the states are wanted.
    fn scored(
        &mut self,
        text: &Running<'_>,
        part: usize,
        scores: Option<&mut PromptScores<'_>>,
        pooled: Option<&mut PooledStates>,
    ) -> std::result::Result<(), ForwardError> {
        // A text that has just ended recounted the memory, without this part.
        self.make_room(&[(text.sequence, part)], 0);
        let cancel = &text.request.cancel;
        cancel.attach(self.waiter.as_ref());
        let cancels = std::slice::from_ref(cancel);
        let mut watch = BatchObserver { cancels, scores, pooled, witnesses: Vec::new() };
        let scored = self.model.score(&text.next[..part], &mut watch);
        cancel.detach();
        scored
    }

    fn place(&mut self, sequence: usize) -> SequencePlace {
        let position = self.model.len_of(sequence);
        let limit = self.model.limit();
        SequencePlace { position, limit, now: self.clock.now() }
    }

    /// Ends a text. Its computed prefix is kept, unless the text has failed. A cancelled pass is
    /// undone.
    fn end(&mut self, mut text: Running<'_>, end: Result<End>, each: &mut dyn FnMut(usize, Event)) {
        let sequence = text.sequence;
        // The caller counts the constraint's memory until it gets the end event.
        text.writer.forget_restriction();
        if end.is_ok() {
            let mut answer = None;
            let mut tokens = std::mem::take(&mut text.request.tokens);
            let made = &text.writer.made.tokens;
            let len = self.model.settle(sequence);
            if !made.is_empty()
                && len + 1 == tokens.len() + made.len()
                && let Some(key) = text.key.take()
            {
                answer = Some(KnownAnswer { key, made: made.clone() });
            }
            tokens.extend(made);
            tokens.truncate(len);
            if let Some(prefix) = self.model.prefix(sequence) {
                let mut entry = PrefixEntry::new(prefix, tokens, text.request.owner);
                entry.short_lived = text.request.short_lived;
                entry.answer = answer;
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

/// Number of tokens of each text in the next step; 0 for texts that wait. Prompts share `prompts`
/// tokens.
fn parts(texts: &[Running<'_>], prompts: usize, goes_back: bool) -> Vec<usize> {
    let mut room = prompts;
    let mut parts = Vec::with_capacity(texts.len());
    for text in texts {
        if text.follows.is_some() {
            parts.push(0);
            continue;
        }
        // A generating text always gets one token.
        let least = usize::from(text.next.len() == 1 || text.has_begun());
        let rest = text.next.len();
        // Where a sequence cannot be cut, a state before the last tokens of a prompt is kept.
        let last =
            if goes_back || rest <= portion::LEAST { 0 } else { (rest - 1) % portion::LEAST + 1 };
        let part = (rest - last).min(room.max(least)).min(text.until_mark());
        room -= if part > 1 { part } else { 0 };
        parts.push(part);
    }
    parts
}

/// Ends a pass at a layer once all its texts are cancelled, and forwards its logits.
struct BatchObserver<'a, 't> {
    cancels: &'a [Cancel],
    scores: Option<&'a mut PromptScores<'t>>,
    pooled: Option<&'a mut PooledStates>,
    /// Witnesses, each with the number of its sequence.
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

    fn takes_states(&self) -> bool {
        self.pooled.is_some()
    }

    fn states(&mut self, width: usize, states: &[f32]) {
        if let Some(pooled) = &mut self.pooled {
            pooled.take(width, states);
        }
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        if let Some(scores) = &mut self.scores {
            scores.take(first, logits);
        }
    }
}
