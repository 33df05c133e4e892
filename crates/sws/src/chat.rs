//! Conversations: what was said, and answers as they come.

use sws_model::check_tokens;
use sws_model::text::{
    ChatOptions, ChatTemplate, Generation, GenerationOptions, Message, Position,
};
use sws_store::Clock;

use crate::{Generate, LoadedModel, Result};

/// A conversation, apart from the model that takes part: several can go on with one model in turns. What
/// the model still has of one is not computed again.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    template: ChatTemplate,
    generation: Generation,
    /// Answers that were begun: each has random numbers of its own.
    answers: u64,
}

impl Conversation {
    /// A conversation in which nothing was said. Without a number of new tokens an answer is as long as there is room.
    pub fn new(template: ChatTemplate, generation: Generation) -> Conversation {
        Conversation { messages: Vec::new(), template, generation, answers: 0 }
    }

    /// Tells the model something before all else.
    pub fn system(mut self, text: impl Into<String>) -> Conversation {
        self.messages.insert(0, message("system", text.into()));
        self
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Forgets what was said, but for the system's message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }
}

impl LoadedModel {
    /// Begins a conversation, by the model's chat template.
    pub fn conversation(&self, options: &GenerationOptions) -> Result<Conversation> {
        let generation = self.model.generation(options)?;
        let template = match self.text.template() {
            Some(template) => template.clone(),
            None => self.model.chat_template()?,
        };
        Ok(Conversation::new(template, generation))
    }

    /// Answers `text` in a conversation. The message and what there is of the answer become part of it
    /// when the answer is over or dropped; neither does if it fails.
    pub fn chat<'a>(
        &'a mut self,
        conversation: &'a mut Conversation,
        text: &str,
    ) -> Result<Generate<'a>> {
        conversation.messages.push(message("user", text.to_owned()));
        let prompt = self.prompt(conversation);
        let started = prompt
            .and_then(|(tokens, generation)| self.start(tokens, &generation, Position::Start));
        if started.is_err() {
            conversation.messages.pop();
        }
        Ok(started?.in_turn(Turn(&mut conversation.messages)))
    }

    /// The tokens of a conversation, and how to answer.
    fn prompt(&self, conversation: &mut Conversation) -> Result<(Vec<u32>, Generation)> {
        let options = ChatOptions {
            add_generation_prompt: true,
            now: Clock::real().unix_seconds(),
            ..ChatOptions::default()
        };
        let prompt = conversation.template.render(&conversation.messages, &options);
        let prompt = prompt.map_err(|e| self.model.error(e))?;
        let tokens = self.text.encode(&self.model, &prompt, false)?;
        check_tokens(&tokens, 0, self.limit(), self.model.spec().vocab)?;
        let mut generation = conversation.generation.clone();
        generation.sampling.seed = generation.sampling.seed.wrapping_add(conversation.answers);
        conversation.answers += 1;
        Ok((tokens, generation))
    }
}

/// The messages of a conversation whose last one waits for an answer.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a mut Vec<Message>);

impl Turn<'_> {
    /// Adds the answer.
    pub(crate) fn answered(self, text: &str) {
        self.0.push(message("assistant", text.to_owned()));
    }

    /// Takes back what cannot be answered.
    pub(crate) fn failed(self) {
        self.0.pop();
    }
}

fn message(role: &str, content: String) -> Message {
    Message { role: role.to_owned(), content }
}
