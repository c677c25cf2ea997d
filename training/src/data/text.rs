//! A text that a small model can learn from: plain English about machines and the people who keep them, made by a grammar. *Pure.*
//!
//! The same seed gives the same text, of any length; other seeds give texts in the same language, to test on.

use super::permutation::mix;

/// What a symbol in angle brackets can become. A `^` makes the next letter a capital.
const GRAMMAR: &[(&str, &[&str])] = &[
    (
        "paragraph",
        &[
            "<sentence> <sentence> <sentence>",
            "<sentence> <sentence> <sentence> <sentence>",
            "<sentence> <sentence> <sentence> <sentence> <sentence>",
            "<sentence> <talk>",
            "<talk> <sentence> <sentence>",
        ],
    ),
    (
        "sentence",
        &[
            "^<time>, <event>.",
            "^<event>, and <event>.",
            "^<event> because <event>.",
            "^<event>, but <event>.",
            "^<event>.",
            "^when <event>, <event>.",
            "^<fact>.",
            "^<fact>, so <fact>.",
            "If <condition>, <consequence>.",
            "^<thing> of <place> is <quality>, and <thing> of <place> is <quality>.",
            "There are <number> <machines> in <place>, and <number> of them are <state>.",
            "^<rank> waits for <rank>, and <rank> waits for <rank>.",
        ],
    ),
    (
        "talk",
        &[
            "\"<question>?\" asked <person>. \"<answer>,\" said <person>.",
            "\"^<event>,\" said <person>. \"<question>?\"",
            "^<person> asked <question2>. Nobody knew, until <event>.",
            "\"<answer>,\" said <person> <manner>.",
        ],
    ),
    (
        "question",
        &[
            "^where is <rank>",
            "Who has seen <rank>",
            "Why is <thing> so <quality>",
            "Does <rank> still answer",
            "How many <machines> are <state>",
            "Shall we wait for <rank>",
            "When does <place> wake",
        ],
    ),
    ("question2", &["where <rank> was", "why <thing> was <quality>", "who had <past> <thing>"]),
    (
        "answer",
        &[
            "It is in <place>",
            "^<rank> has <past> <thing>",
            "Nobody knows",
            "Look at <thing> first",
            "Ask <person>",
            "^<number> of them, and one is <state>",
            "We go on without <rank>",
            "It will be <quality> <time2>",
        ],
    ),
    (
        "condition",
        &[
            "<rank> does not answer",
            "<thing> is <quality>",
            "two ranks share a core",
            "the ring is broken",
            "a message is longer than the window",
            "every rank calls the same thing",
            "one link is slower than the others",
        ],
    ),
    (
        "consequence",
        &[
            "all the others are told its name",
            "the sum comes out the same",
            "nothing is lost",
            "the call ends with an error",
            "the next ring takes the other way",
            "<person> is called at night",
            "<rank> takes over",
            "the slowest link decides how long it takes",
        ],
    ),
    (
        "fact",
        &[
            "a ring of <number> ranks takes <number> steps",
            "every rank holds a part of <thing>",
            "a sum does not depend on who comes first",
            "a tree is better than a ring when the messages are short",
            "a ring is better than a tree when the messages are long",
            "what is measured is better than what is guessed",
            "memory is near, and the network is far",
            "half of the work is waiting",
            "a good error says what to do",
            "the gradient of <thing> is <quality>",
            "a shard is kept by one rank and read by all",
            "the heaviest traffic belongs on the fastest link",
            "each host counts its ranks from zero",
        ],
    ),
    (
        "event",
        &[
            "<person> <past> <thing>",
            "<rank> <past> <thing>",
            "<person> and <person> <past> <thing> in <place>",
            "<rank> sent <thing> to <rank>",
            "<rank> read <thing> from <rank>",
            "<person> walked to <place>",
            "<thing> was <quality>",
            "the <machines> in <place> were <state>",
            "<rank> came back from <place>",
            "<person> counted <number> <machines>",
            "rain fell on <place>",
            "snow lay on <place>",
            "<person> wrote a letter about <thing>",
            "<rank> added up <number> numbers",
            "<person> opened a window in <place>",
        ],
    ),
    (
        "time",
        &[
            "in the morning",
            "at noon",
            "in the evening",
            "late at night",
            "on the <ordinal> day",
            "before the first step",
            "after the <ordinal> step",
            "in the spring",
            "in the autumn",
            "in winter",
            "a week later",
            "then",
            "soon after",
            "at the end of the year",
        ],
    ),
    (
        "time2",
        &["tomorrow", "in the morning", "by the end of the week", "after the next step", "before winter"],
    ),
    (
        "person",
        &[
            "the operator",
            "the old engineer",
            "the night watch",
            "Ada",
            "Nora",
            "Emil",
            "Tomas",
            "Ines",
            "the gardener",
            "the clerk",
            "the student",
            "my sister",
            "the teacher of mathematics",
            "the woman from the harbour",
        ],
    ),
    (
        "rank",
        &[
            "rank <number0>",
            "rank <number0>",
            "the first rank",
            "the last rank",
            "the neighbour on the left",
            "the neighbour on the right",
            "the leader of the ring",
            "the slowest rank",
            "a rank on the other host",
        ],
    ),
    (
        "past",
        &[
            "found",
            "repaired",
            "measured",
            "forgot",
            "carried",
            "copied",
            "weighed",
            "drew",
            "lost",
            "described",
            "checked",
            "painted",
            "counted",
            "shared",
            "reduced",
            "gathered",
            "scattered",
            "looked for",
        ],
    ),
    (
        "thing",
        &[
            "the cable",
            "the long ring",
            "the broken link",
            "the map of <place>",
            "a table of numbers",
            "the slow switch",
            "the last message",
            "the gradient",
            "the shard of the <ordinal> layer",
            "the clock",
            "the red notebook",
            "the first measurement",
            "the lamp",
            "the sum of all parts",
            "a small window",
            "the weights",
            "the schedule",
            "the key of <place>",
            "the letter",
        ],
    ),
    (
        "place",
        &[
            "the machine room",
            "the north hall",
            "the cellar",
            "the old tower",
            "the harbour",
            "the second rack",
            "the house on the hill",
            "the garden",
            "the library",
            "the village",
            "the island",
            "the far end of the network",
            "the station",
            "the workshop",
        ],
    ),
    ("machines", &["hosts", "switches", "cards", "fans", "lamps", "ports", "disks", "clocks", "cores"]),
    (
        "state",
        &["asleep", "awake", "warm", "cold", "silent", "busy", "ready", "covered with dust", "numbered anew"],
    ),
    (
        "quality",
        &[
            "heavier than it looks",
            "small",
            "nearly full",
            "older than the house",
            "faster than the wire",
            "blue",
            "quiet",
            "worth a second look",
            "shorter than before",
            "the same on every host",
            "hard to find",
            "simple",
            "well known",
        ],
    ),
    (
        "manner",
        &["quietly", "without looking up", "and closed the door", "and laughed", "after a while", "at once"],
    ),
    (
        "number",
        &["two", "three", "four", "five", "six", "seven", "eight", "nine", "twelve", "sixteen", "thirty-two"],
    ),
    ("number0", &["zero", "one", "two", "three", "four", "five", "six", "seven"]),
    ("ordinal", &["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "last"]),
];

/// About `bytes` bytes of text: whole paragraphs, a blank line between two.
pub fn generate(seed: u64, bytes: usize) -> String {
    let mut writer = Writer { text: String::with_capacity(bytes + 1024), state: mix(seed), capital: false };
    while writer.text.len() < bytes {
        writer.expand("paragraph");
        writer.text.push_str("\n\n");
    }
    writer.text
}

struct Writer {
    text: String,
    state: u64,
    capital: bool,
}

impl Writer {
    fn expand(&mut self, symbol: &str) {
        // Every symbol is in the table: a test looks.
        let Some((_, choices)) = GRAMMAR.iter().find(|(name, _)| *name == symbol) else { return };
        self.state = mix(self.state);
        let mut rest = choices[(self.state >> 32) as usize % choices.len()];
        while let Some((before, after)) = rest.split_once('<') {
            self.write(before);
            let Some((inner, after)) = after.split_once('>') else { return };
            self.expand(inner);
            rest = after;
        }
        self.write(rest);
    }

    fn write(&mut self, words: &str) {
        for letter in words.chars() {
            match letter {
                '^' => self.capital = true,
                _ if self.capital => {
                    self.text.extend(letter.to_uppercase());
                    self.capital = false;
                }
                _ => self.text.push(letter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_is_there_and_used() {
        let inner = |choice: &&'static str| -> Vec<&'static str> {
            choice.split('<').skip(1).filter_map(|s| Some(s.split_once('>')?.0)).collect()
        };
        let used: Vec<&str> =
            GRAMMAR.iter().flat_map(|(_, choices)| choices.iter().flat_map(inner)).collect();
        for symbol in &used {
            assert!(GRAMMAR.iter().any(|(name, _)| name == symbol), "<{symbol}> is not in the grammar");
        }
        for (name, _) in &GRAMMAR[1..] {
            assert!(used.contains(name), "<{name}> is never used");
        }
    }

    #[test]
    fn plain_and_the_same_each_time() {
        let text = generate(1, 100_000);
        assert!((100_000..102_000).contains(&text.len()));
        assert!(text.is_ascii() && !text.contains(['<', '>', '^']));
        assert_eq!(text, generate(1, 100_000));
        assert_ne!(text[..1000], generate(2, 1000)[..1000]);
        // Hardly a sentence comes twice.
        let mut sentences: Vec<&str> = text.split(". ").collect();
        let all = sentences.len();
        sentences.sort_unstable();
        sentences.dedup();
        assert!(sentences.len() > all * 3 / 4, "{} of {all}", sentences.len());
    }
}
