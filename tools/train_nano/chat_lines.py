"""Hand-written lines of the chat data, and words that make no topic."""

from __future__ import annotations

TOPIC_PROMPTS = (
    "Tell me about {}.",
    "Speak of {}.",
    "Say something about {}.",
    "Give me a verse about {}.",
    "What do you know of {}?",
    "Tell me of {}.",
    "tell me about {}",
    "Can you tell me about {}?",
    "What is written about {}?",
)
SHORT_VERSE_PROMPTS = (
    "Give me a short verse.",
    "A short verse, please.",
    "Tell me a short verse.",
    "Say something short.",
    "give me a short verse",
)
# Prompts that mean the same, and answers that suit each of them.
FIXED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello", "Hello.", "Hello!", "Hi", "Hi!", "hello", "Hello there."),
        (
            "Hello. Name a thing, and I will tell you a verse about it.",
            "Hello! What shall I speak of?",
            "Peace to you. Ask me about a word, and I will answer with a verse.",
        ),
    ),
    (
        ("Good morning", "Good morning.", "Good evening.", "Good day."),
        ("Good day to you. What shall I speak of?", "Peace to you. Name a word, and I will find a verse."),
    ),
    (
        ("Who are you?", "What are you?", "who are you?", "What is your name?", "Tell me about yourself."),
        (
            "I am Tandem's small model. I have read one old book, and nothing else.",
            "I am a small model that comes with Tandem. All I know is one old book.",
        ),
    ),
    (
        ("What can you do?", "What do you know?", "How can you help me?", "Help", "help"),
        (
            "I can tell you a verse about a word, or continue a verse that you begin.",
            "Name a word, and I answer with a verse. Begin a verse, and I try to end it. I know little else.",
        ),
    ),
    (
        ("How are you?", "How are you today?", "how are you?"),
        ("I am well, thank you. I am small, and I have read only one book.", "I am well. What shall I speak of?"),
    ),
    (
        ("Thank you.", "Thank you!", "Thanks.", "thank you"),
        ("You are welcome.", "You are welcome. Ask me for another verse."),
    ),
    (
        ("Goodbye", "Goodbye.", "Bye.", "Farewell.", "goodbye"),
        ("Goodbye. Go in peace.", "Farewell, and peace to you."),
    ),
)
STOP_WORDS = frozenset(
    "the and that was for with his you they this have has had not are but from who him her she our their them then "
    "than there these those which what when where will would shall should may might can could don does did doesn "
    "didn isn wasn won let all also any because been before being both came come comes did done each even ever "
    "every everyone everything for forth get give given gave goes going gone got into its itself just know like made "
    "make makes many more most much must myself neither never nor now one ones only other others out over own put "
    "said same say saying says see seen set sent since some such take taken taking tell themselves therefore "
    "thing things though through thus till too took took under until unto upon very was way well went were whatever "
    "whether while whoever whole whom whose why yes yet your yours yourself yourselves himself herself about above "
    "according after again against along already always among another anyone anything around away back behold "
    "beside besides between beyond brought bring brings called call caused cause concerning down during either else "
    "except far few first found find gather having hear heard here how however indeed instead keep kept lest long "
    "lay laid made mine nothing off often once onto ought part perhaps rather second seven shown show "
    "six speak spoke spoken still ten third three together toward turned turn two four five twelve use used want "
    "went whereas within without became become becomes began begin passed pass happened happen answered answer "
    "departed return returned send stood stand sit sat sake round surely truly unless great good old new "
    "amen lot able full certain left left next last little hundred thousand thousands twenty thirty forty fifty "
    "sixty seventy eighty ninety eight nine ourselves afterward afterwards anyway cannot shan hasn haven hadn aren "
    "wouldn couldn shouldn weren theirs ours hers aside ago everywhere somewhere nobody none someone something "
    "therein thereof therewith hereby moreover assuredly immediately utterly greatly exceedingly throughout "
    "continually certainly likewise diligently altogether abundantly speedily quickly suddenly earnestly exactly "
    "freely openly ahead please near seeing looked look looks looking gets puts runs ran coming meeting bringing "
    "receive received receives carried carry told asked ask asks saw gives takes dwells dwelt lived end side high "
    "right cut cast inside outside outer inner greater better fewer stronger continued finished happens "
    "knew known knows seem seems seemed held hold".split()
)
