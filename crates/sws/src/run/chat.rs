//! Conversations and their messages.

use sws_format::Clock;
use sws_model::check_tokens;
use sws_text::{
    ChatOptions, ChatPrompt, ChatTemplate, Generation, GenerationOptions, Json, Message, Position,
    ReplyFormat, ReplyReader,
};

use crate::run::turn::Turn;
use crate::{Generate, LoadedModel, Result};

/// A conversation, independent of the model that answers: one model can serve several in turn.
/// Messages whose tokens are still in the model's sequence are not computed again.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    template: ChatTemplate,
    format: ReplyFormat,
    /// Variables of the template.
    variables: Vec<(String, Json)>,
    generation: Generation,
    /// Number of answers begun: each has its own random numbers.
    answers: u64,
}

impl Conversation {
    /// Creates an empty conversation. Without a limit of new tokens, an answer can fill the
    /// context.
    pub fn new(template: ChatTemplate, generation: Generation) -> Conversation {
        Conversation {
            messages: Vec::new(),
            format: ReplyFormat::of(&template),
            template,
            variables: Vec::new(),
            generation,
            answers: 0,
        }
    }

    /// Puts a system message before all others.
    pub fn system(mut self, text: impl Into<String>) -> Conversation {
        self.set_system(text);
        self
    }

    /// Replaces the system message, which precedes all others.
    pub fn set_system(&mut self, text: impl Into<String>) {
        self.messages.retain(|message| message.role != SYSTEM);
        self.messages.insert(0, Message::new(SYSTEM, text));
    }

    /// Makes the model think before its answers, or answer at once. Returns false if its template
    /// has no such switch. Some models only think more or less.
    pub fn set_thinking(&mut self, think: bool) -> bool {
        let switch = self.template.thinking(think);
        let has_switch = switch.is_some();
        self.variables = switch.unwrap_or_default();
        has_switch
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces all messages.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// Removes all messages except the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == SYSTEM);
    }

    /// Removes the oldest question and its answer, unless it is the last. Returns true if there was one.
    pub fn forget_oldest(&mut self) -> bool {
        let places = 0..self.messages.len();
        let mut questions = places.filter(|&place| self.messages[place].role == USER);
        let Some(first) = questions.next() else { return false };
        let Some(second) = questions.next() else { return false };
        self.messages.drain(first..second);
        true
    }

    /// Removes the last question and its answer. Returns the question, if there is one.
    pub fn undo(&mut self) -> Option<String> {
        let last = self.messages.iter().rposition(|message| message.role == USER)?;
        let question = self.messages.drain(last..).next()?;
        Some(question.content)
    }
}

const SYSTEM: &str = "system";
const USER: &str = "user";

impl LoadedModel {
    /// Begins a conversation with the model's chat template. Its answers are sampled unless the model
    /// or the options say otherwise.
    pub fn conversation(&self, options: &GenerationOptions) -> Result<Conversation> {
        let template = match self.text.template() {
            Some(template) => template.clone(),
            None => self.model.chat_template()?,
        };
        let thinks = template.thinks();
        let options = GenerationOptions { conversation: true, thinks, ..options.clone() };
        let generation = self.model.generation(&options)?;
        Ok(Conversation::new(template, generation))
    }

    /// The prompt with which `text` would be answered in a conversation.
    pub fn chat_prompt(&self, conversation: &Conversation, text: &str) -> Result<ChatPrompt> {
        let mut messages = conversation.messages.clone();
        messages.push(Message::new(USER, text));
        self.rendered(conversation, &messages)
    }

    /// The number of tokens of that prompt.
    pub fn chat_tokens(&self, conversation: &Conversation, text: &str) -> Result<usize> {
        let prompt = self.chat_prompt(conversation, text)?;
        Ok(self.text.encode_prompt(&self.model, &prompt)?.len())
    }

    fn rendered(&self, conversation: &Conversation, messages: &[Message]) -> Result<ChatPrompt> {
        let options = ChatOptions {
            add_generation_prompt: true,
            now: Clock::real().unix_seconds(),
            variables: conversation.variables.clone(),
            ..ChatOptions::default()
        };
        let prompt = conversation.template.prompt(messages, &options);
        self.model.named(prompt)
    }

    /// Answers `text` in a conversation. When the answer ends or is dropped, message and answer are
    /// added, even if the answer is incomplete. On failure neither is added.
    pub fn chat<'a>(
        &'a mut self,
        conversation: &'a mut Conversation,
        text: &str,
    ) -> Result<Generate<'a>> {
        conversation.messages.push(Message::new(USER, text));
        let prompt = self.prompt(conversation);
        let started = prompt.and_then(|(tokens, generation, reader)| {
            Ok((self.start(tokens, &generation, Position::Start)?, reader))
        });
        if started.is_err() {
            conversation.messages.pop();
        }
        let (generate, reader) = started?;
        Ok(generate.in_turn(Turn::new(&mut conversation.messages), reader))
    }

    /// Tokens of a conversation, and the options and the reader of the next answer.
    fn prompt(
        &self,
        conversation: &mut Conversation,
    ) -> Result<(Vec<u32>, Generation, ReplyReader)> {
        let prompt = self.rendered(conversation, &conversation.messages)?;
        let tokens = self.text.encode_prompt(&self.model, &prompt)?;
        check_tokens(&tokens, 0, self.limit(), self.model.spec().vocab)?;
        let mut generation = conversation.generation.clone();
        generation.sampling.seed = generation.sampling.seed.wrapping_add(conversation.answers);
        generation.shown_tokens = self.text.markers(conversation.format);
        conversation.answers += 1;
        Ok((tokens, generation, conversation.format.reader(prompt.text(), None)))
    }
}
