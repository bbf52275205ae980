"""The words of the demo's grammar, as tables that you can extend.

A line of a noun is ``gender singular plural english [english plural]``. ``*`` marks a weak
masculine noun, whose oblique singular is its plural (den Jungen). A line of a verb is ``infinitive
er-form participle english past frame objects``. ``|`` follows a separable prefix, ``*`` marks the
auxiliary `sein`, and ``_`` is a space.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both languages. ``gender`` is m, f or n; ``kind`` is the name of its table."""

    gender: str
    singular: str
    plural: str
    oblique: str  # accusative and dative singular
    english: str
    english_plural: str
    kind: str


class Verb(NamedTuple):
    """A verb in both languages.

    ``frame`` names the objects that the verb requires: intransitive (none), accusative, dative,
    both, motion (a direction), or a preposition with its case (auf+accusative). ``objects`` are the
    kinds of nouns of its objects.
    """

    prefix: str  # separable, or empty
    infinitive: str  # without the prefix
    er: str  # third person singular, present, without the prefix
    participle: str
    auxiliary: str  # haben or sein
    english: str  # base form; the rest (`pick up`) is in `particle`
    particle: str
    past: str
    frame: str
    objects: tuple[str, ...]


NOUNS = {
    "person": """
        m Mann Männer man men
        f Frau Frauen woman women
        n Kind Kinder child children
        m Junge* Jungen boy
        n Mädchen Mädchen girl
        m Lehrer Lehrer teacher
        f Ärztin Ärztinnen doctor
        m Nachbar* Nachbarn neighbour
        f Nachbarin Nachbarinnen neighbour
        m Bruder Brüder brother
        f Schwester Schwestern sister
        m Vater Väter father
        f Mutter Mütter mother
        m Student* Studenten student
        f Studentin Studentinnen student
        m Bäcker Bäcker baker
        m Gärtner Gärtner gardener
        f Köchin Köchinnen cook
        m Freund Freunde friend
        f Tochter Töchter daughter
        m Sohn Söhne son
        m Gast Gäste guest
        f Tante Tanten aunt
        m Onkel Onkel uncle
        m Kellner Kellner waiter
    """,
    "animal": """
        m Hund Hunde dog
        f Katze Katzen cat
        n Pferd Pferde horse
        m Vogel Vögel bird
        f Kuh Kühe cow
        n Schaf Schafe sheep sheep
    """,
    "text": """
        n Buch Bücher book
        m Brief Briefe letter
        f Zeitung Zeitungen newspaper
        m Bericht Berichte report
        m Roman Romane novel
        n Gedicht Gedichte poem
    """,
    "food": """
        m Apfel Äpfel apple
        m Kuchen Kuchen cake
        f Suppe Suppen soup
        n Ei Eier egg
        f Birne Birnen pear
        f Kartoffel Kartoffeln potato potatoes
    """,
    "opening": """
        f Tür Türen door
        n Fenster Fenster window
        m Schrank Schränke cupboard
        m Koffer Koffer suitcase
        f Kiste Kisten box boxes
        n Tor Tore gate
    """,
    "device": """
        f Lampe Lampen lamp
        f Maschine Maschinen machine
        m Computer Computer computer
        n Radio Radios radio
        f Uhr Uhren clock
        n Fahrrad Fahrräder bicycle
        n Auto Autos car
        m Motor Motoren engine
    """,
    "clothing": """
        m Mantel Mäntel coat
        m Hut Hüte hat
        f Jacke Jacken jacket
        n Hemd Hemden shirt
        n Kleid Kleider dress dresses
        m Schuh Schuhe shoe
    """,
    "thing": """
        m Tisch Tische table
        m Stuhl Stühle chair
        n Bild Bilder picture
        m Teller Teller plate
        f Tasse Tassen cup
        m Schlüssel Schlüssel key
        f Tasche Taschen bag
        f Flasche Flaschen bottle
        n Geschenk Geschenke present
        f Blume Blumen flower
    """,
    "room": """
        n Zimmer Zimmer room
        f Küche Küchen kitchen
        m Keller Keller cellar
        n Büro Büros office
        f Wohnung Wohnungen flat
        f Garage Garagen garage
    """,
}

# First parts of compounds, their English, and their heads: Küchen + Tisch is the kitchen table.
COMPOUNDS = [
    (
        "Küchen:kitchen, Garten:garden, Büro:office, Schul:school, Hotel:hotel, Keller:cellar",
        "Tisch Stuhl Schrank Tür Fenster Lampe Schlüssel Uhr",
    ),
    ("Winter:winter, Sommer:summer, Regen:rain", "Mantel Jacke Schuh Hut"),
    ("Liebes:love", "Brief Roman Gedicht"),
    ("Reise:travel, Geschäfts:business, Sport:sports", "Bericht Zeitung"),
    ("Apfel:apple, Kartoffel:potato, Zwiebel:onion", "Kuchen Suppe"),
    ("Kinder:children's", "Buch Zimmer Fahrrad Zeitung Kleid"),
]

VERBS = """
    lesen liest gelesen read read accusative text
    schreiben schreibt geschrieben write wrote accusative text
    kaufen kauft gekauft buy bought accusative text,food,device,clothing,thing
    verkaufen verkauft verkauft sell sold accusative text,food,device,clothing,thing
    suchen sucht gesucht look_for looked accusative text,animal,thing,clothing,person
    finden findet gefunden find found accusative text,animal,thing,clothing
    sehen sieht gesehen see saw accusative person,animal,thing,device
    besuchen besucht besucht visit visited accusative person
    fragen fragt gefragt ask asked accusative person
    verstehen versteht verstanden understand understood accusative person,text
    essen isst gegessen eat ate accusative food
    kochen kocht gekocht cook cooked accusative food
    reparieren repariert repariert repair repaired accusative device,opening
    waschen wäscht gewaschen wash washed accusative clothing,device,animal
    tragen trägt getragen carry carried accusative opening,thing
    vergessen vergisst vergessen forget forgot accusative thing,text,clothing
    bezahlen bezahlt bezahlt pay_for paid accusative food,clothing,device
    füttern füttert gefüttert feed fed accusative animal
    auf|machen macht aufgemacht open opened accusative opening
    zu|machen macht zugemacht close closed accusative opening
    an|rufen ruft angerufen call called accusative person
    ab|holen holt abgeholt pick_up picked accusative person,thing
    ein|laden lädt eingeladen invite invited accusative person
    kennen|lernen lernt kennengelernt meet met accusative person
    auf|räumen räumt aufgeräumt tidy_up tidied accusative room,opening
    weg|werfen wirft weggeworfen throw_away threw accusative food,text,thing
    ein|schalten schaltet eingeschaltet switch_on switched accusative device
    aus|schalten schaltet ausgeschaltet switch_off switched accusative device
    an|ziehen zieht angezogen put_on put accusative clothing
    mit|bringen bringt mitgebracht bring_along brought accusative food,thing,animal
    auf|schreiben schreibt aufgeschrieben write_down wrote accusative text
    ein|packen packt eingepackt pack packed accusative clothing,text,thing
    an|streichen streicht angestrichen paint painted accusative opening,room
    helfen hilft geholfen help helped dative person
    danken dankt gedankt thank thanked dative person
    folgen folgt gefolgt* follow followed dative person,animal
    antworten antwortet geantwortet answer answered dative person
    zu|hören hört zugehört listen_to listened dative person
    geben gibt gegeben give gave both food,text,thing
    zeigen zeigt gezeigt show showed both text,device,room,thing
    schicken schickt geschickt send sent both text,thing
    bringen bringt gebracht bring brought both food,clothing,thing
    erklären erklärt erklärt explain explained both text,device
    vor|lesen liest vorgelesen read_out read both text
    zurück|geben gibt zurückgegeben give_back gave both thing,text,clothing
    warten wartet gewartet wait_for waited auf+accusative person
    denken denkt gedacht think_of thought an+accusative person,animal
    sprechen spricht gesprochen speak_to spoke mit+dative person
    spielen spielt gespielt play_with played mit+dative person,animal
    nach|denken denkt nachgedacht think_about thought über+accusative text
    schlafen schläft geschlafen sleep slept intransitive
    arbeiten arbeitet gearbeitet work worked intransitive
    lachen lacht gelacht laugh laughed intransitive
    tanzen tanzt getanzt dance danced intransitive
    singen singt gesungen sing sang intransitive
    weinen weint geweint cry cried intransitive
    auf|stehen steht aufgestanden* get_up got intransitive
    an|kommen kommt angekommen* arrive arrived intransitive
    ein|schlafen schläft eingeschlafen* fall_asleep fell intransitive
    gehen geht gegangen* go went motion
    fahren fährt gefahren* drive drove motion
    laufen läuft gelaufen* run ran motion
    kommen kommt gekommen* come came motion
    zurück|kehren kehrt zurückgekehrt* return returned motion
"""

ING = {
    "run": "running",
    "put": "putting",
    "get": "getting",
    "forget": "forgetting",
    "see": "seeing",
}

# German stem:English, by kind of noun.
ADJECTIVES = {
    "person": "alt:old, jung:young, freundlich:friendly, müd:tired, klug:clever, "
    "fleißig:hard-working, groß:tall, krank:ill, nett:kind",
    "animal": "alt:old, jung:young, klein:small, groß:big, schwarz:black, weiß:white, schnell:fast",
    "thing": "alt:old, neu:new, klein:small, groß:big, schwer:heavy, rot:red, blau:blue, "
    "grün:green, teur:expensive, billig:cheap, schön:beautiful, schmutzig:dirty",
    "food": "frisch:fresh, kalt:cold, warm:warm, gut:good, billig:cheap, groß:big",
    "text": "alt:old, neu:new, lang:long, kurz:short, wichtig:important, langweilig:boring, "
    "interessant:interesting",
}
STATES = (
    "müde:tired, krank:ill, hungrig:hungry, glücklich:happy, traurig:sad, nervös:nervous, "
    "zufrieden:content"
)

NAMES = "Anna Peter Maria Thomas Julia Paul Lena Jonas"

# Preposition, its English, gender, noun and English noun; all with the dative.
PLACES = """
    in in m Garten garden
    in in f Küche kitchen
    in at f Schule school
    auf at m Markt market
    an at m Bahnhof station
    in in n Büro office
    vor in_front_of n Haus house
    hinter behind f Garage garage
    neben next_to f Kirche church
    unter under f Brücke bridge
    in in f Bibliothek library
    in in m Park park
    in in n Restaurant restaurant
    an by m See lake
    in in n Dorf village
"""
# The same for directions: in with the accusative (into), zu with the dative (to).
DIRECTIONS = """
    in to f Stadt city
    in into m Wald forest
    in to n Dorf village
    in into m Park park
    zu to m Bahnhof station
    zu to f Schule school
    zu to m Markt market
    zu to f Kirche church
    zu to n Krankenhaus hospital
    zu to m Flughafen airport
"""
HOME = "nach Hause:home, nach Berlin:to Berlin, nach Hamburg:to Hamburg, nach Wien:to Vienna"

MANNERS = (
    "schnell:quickly, langsam:slowly, vorsichtig:carefully, leise:quietly, fröhlich:cheerfully, "
    "heimlich:secretly"
)
FREQUENCIES = "immer:always, oft:often, manchmal:sometimes, nie:never, selten:rarely"
DAYS = (
    "Montag:Monday, Dienstag:Tuesday, Mittwoch:Wednesday, Donnerstag:Thursday, "
    "Freitag:Friday, Samstag:Saturday, Sonntag:Sunday"
)
UNITS = "Tagen:days, Wochen:weeks, Monaten:months, Jahren:years"
TIMES = {
    "present": "heute:today, jetzt:now, jeden Tag:every day, jeden Morgen:every morning",
    "past": "gestern:yesterday, letzte Woche:last week, heute Morgen:this morning, "
    "gestern Abend:yesterday evening",
    "future": "morgen:tomorrow, bald:soon, nächste Woche:next week, morgen Abend:tomorrow evening",
}

# Modal verbs: the forms of ich and er, of du and of the plural; the English verb.
MODALS = """
    kann kannst können can
    muss musst müssen have_to
    will willst wollen want_to
    soll sollst sollen should
    darf darfst dürfen be_allowed_to
    möchte möchtest möchten would_like_to
"""

# Verbs before `dass` (or `ob`) and before an infinitive: infinitive, er-form, participle, English
# verb and its past. A report ends with the conjunction in both languages.
REPORTS = """
    wissen weiß gewusst know knew dass:that
    glauben glaubt geglaubt believe believed dass:that
    hoffen hofft gehofft hope hoped dass:that
    sagen sagt gesagt say said dass:that
    hören hört gehört hear heard dass:that
    fragen fragt gefragt ask asked ob:whether
"""
ATTEMPTS = """
    versuchen versucht versucht try tried
    vergessen vergisst vergessen forget forgot
    beginnen beginnt begonnen begin began
    planen plant geplant plan planned
    hoffen hofft gehofft hope hoped
"""

ONES = (
    "null ein zwei drei vier fünf sechs sieben acht neun "
    "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
).split()
TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
ENGLISH_ONES = (
    "zero one two three four five six seven eight nine "
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a text: ``a b:c, d:e`` is [("a b", "c"), ("d", "e")]."""
    pieces = [piece.partition(":") for piece in text.split(", ")]
    return [(german, english) for german, _, english in pieces]


def rows(table: str) -> list[list[str]]:
    """Split the lines of a table at spaces, and replace ``_`` by a space."""
    return [
        [cell.replace("_", " ") for cell in line.split()] for line in table.strip().splitlines()
    ]


def nouns() -> dict[str, list[Noun]]:
    """Return all nouns by kind; a compound has the kind of its head."""
    by_kind: dict[str, list[Noun]] = {}
    for kind, table in NOUNS.items():
        by_kind[kind] = []
        for gender, singular, plural, english, *rest in rows(table):
            weak = singular.endswith("*")
            singular = singular.rstrip("*")
            oblique = plural if weak else singular
            english_plural = rest[0] if rest else f"{english}s"
            noun = Noun(gender, singular, plural, oblique, english, english_plural, kind)
            by_kind[kind].append(noun)
    heads = {noun.singular: noun for members in by_kind.values() for noun in members}
    for parts, names in COMPOUNDS:
        for part, english in pairs(parts):
            for head in (heads[name] for name in names.split()):
                singular, plural, oblique = (
                    part + word.lower() for word in (head.singular, head.plural, head.oblique)
                )
                texts = (f"{english} {head.english}", f"{english} {head.english_plural}")
                by_kind[head.kind].append(
                    Noun(head.gender, singular, plural, oblique, *texts, head.kind)
                )
    return by_kind


def verbs() -> list[Verb]:
    all_verbs = []
    for german, er, participle, english, past, frame, *objects in rows(VERBS):
        prefix, _, infinitive = german.rpartition("|")
        auxiliary = "sein" if participle.endswith("*") else "haben"
        base, _, particle = english.partition(" ")
        kinds = tuple(objects[0].split(",")) if objects else ()
        participle = participle.rstrip("*")
        all_verbs.append(
            Verb(prefix, infinitive, er, participle, auxiliary, base, particle, past, frame, kinds)
        )
    return all_verbs
