"""The English text that every measurement feeds to the model. All of it was written for this repository."""

from __future__ import annotations

# Each passage has more than 128 word pieces, so that a request of sequence length 128 holds words and no padding.
PASSAGES: tuple[str, ...] = (
    "The ferry left the harbour a little after six, while the streetlights along the quay were still burning. A "
    "dozen passengers stood on the upper deck with their collars turned up, drinking coffee from paper cups and "
    "watching the town shrink behind them. Halfway across the strait the wind freshened from the north and the "
    "captain slowed the engines, because a fishing boat was crossing the channel with its nets still out. Nobody "
    "complained. By the time the island came into view, the clouds had opened and the chapel on the hill was bright "
    "with sun. Two children raced each other down the gangway before the ropes were tied, and their grandmother "
    "shouted after them to wait.",
    "A bread dough that rests overnight in the refrigerator behaves differently from one that is baked the same "
    "day. The cold slows the yeast far more than it slows the enzymes, so starch keeps turning into sugar while "
    "very little gas is produced. In the morning the dough smells faintly of apples and is easy to shape, because "
    "the gluten has relaxed. Bake it in a heavy pot with the lid on for the first twenty minutes, so that the steam "
    "stays close to the crust, and then take the lid off until the loaf is the colour of chestnuts. Let it cool for "
    "at least an hour before you cut it, however good the kitchen smells, or the crumb will be gummy and dull the "
    "knife.",
    "When a request reaches the server, a small process reads its header, decides which queue it belongs to and "
    "hands it over without looking at the body. The workers take requests from their queues in batches, because one "
    "large matrix product keeps the arithmetic units busier than many small ones. A batch is closed when it is full "
    "or when its oldest request has waited four milliseconds, whichever comes first. That second rule matters more "
    "than it seems: at night, when traffic is thin, full batches would take seconds to form and every user would "
    "notice the delay. Each answer carries the time it spent waiting and the time it spent computing, so that a "
    "slow response can be explained later.",
    "The first winter in the observatory was the hardest. Snow blocked the road for nine weeks, the generator had "
    "to be restarted by hand every morning, and the dome froze to its rail so often that the astronomers kept a "
    "kettle beside the telescope. Yet the nights were clear and steady, and the photographs they brought down in "
    "spring showed faint arms around a galaxy that every atlas drew as a plain disc. Two other groups repeated the "
    "exposure before anyone believed it. Today the plates are kept in a museum drawer, scratched and slightly "
    "yellow, next to the notebook in which the youngest assistant wrote down the temperature of the mirror every "
    "quarter of an hour.",
    "Before you buy an old bicycle, turn it upside down and spin both wheels slowly. Watch the gap between the rim "
    "and the brake pads: if it opens and closes by more than the thickness of a coin, the wheel needs work. Then "
    "look along the chain from behind. A worn chain can be lifted off the front of the chainring with two fingers, "
    "and it will have worn the sprockets too, which cost more than the chain. Rust on the frame is seldom serious "
    "unless it bubbles under the paint near the bottom bracket. Finally ride it uphill, standing on the pedals; a "
    "cracked frame creaks in a low voice that is easy to tell from the click of a dry bearing. Offer half of what "
    "the seller asks and be polite about it.",
    "The city council voted on Tuesday to plant four thousand trees along the avenues that heat up most in summer. "
    "Engineers had mapped the surface temperature of every street from an aircraft, and the difference between a "
    "shaded block and a bare one was eleven degrees at three in the afternoon. Shopkeepers worried about losing "
    "parking spaces, so the final plan uses narrow pits between the cars instead of a continuous strip. Maple and "
    "plane trees were ruled out because their roots lift the pavement; hackberry and field elm will be planted in "
    "their place. The first two hundred arrive in November, and residents can register to water a tree on their own "
    "street during dry weeks.",
    "My uncle repaired clocks for forty years in a room no larger than a railway compartment. He never used a "
    "magnifying glass until he was past sixty, and he could tell by listening which wheel of a movement had lost a "
    "tooth. Customers brought him kitchen alarms and cathedral clocks, and he charged all of them by the hour, "
    "never by the value of the piece. On Sundays he wound every clock in the shop, thirty or more, and set them a "
    "few seconds apart so that they would strike one after another instead of together. He said that a room in "
    "which everything happens at once is only noisy, while a room in which things happen in turn can be understood "
    "by anyone who is patient.",
    "The patient was a runner of thirty-four who complained of pain on the outside of the knee that began after "
    "about five kilometres and went away when she stopped. The joint was stable, there was no swelling, and an "
    "image showed nothing unusual in the cartilage. The therapist asked her to run on a treadmill and filmed her "
    "from behind: her left hip dropped with every step, a sign that the muscles on that side were tired or weak. "
    "Six weeks of side planks and single leg squats, together with slightly shorter strides, were enough. She "
    "returned to her usual distance without pain and kept the exercises in her routine, twice a week, because the "
    "weakness had taken years to build up.",
)

# Sentence pairs for the similarity check: related in meaning, loosely related, unrelated.
PAIRS: tuple[tuple[str, str], ...] = (
    ("The cat is asleep on the warm windowsill.", "A kitten naps in the sun by the window."),
    ("How do I reset the password of my account?", "I forgot my login details and need new ones."),
    ("The orchestra tuned its instruments before the concert.", "A violinist practised a sonata at home."),
    ("Heavy rain flooded the lower streets of the town.", "The recipe asks for two eggs and a cup of flour."),
    ("Shares of the airline fell after the strike was announced.", "Octopuses can open jars from the inside."),
)
