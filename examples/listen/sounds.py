"""Recordings of somebody who talks now and then, synthesised from a seed, so that it is known when they talk.

A voice is a source and a filter (Fant, Acoustic Theory of Speech Production, 1960): Rosenberg's glottal pulses, through
the three lowest formants of a vowel or nasal; consonants are hiss and silence. Behind it is noise, a chord, a hum or
clicks, which are no speech.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RATE_HZ = 16_000
CHUNK = 512  # samples of a request: 32 ms
FRAME, HOP = 512, 128  # samples: of one spectrum, between two
VOWELS_HZ = (  # formants 1 to 3 of men, Peterson and Barney, 1952
    *((730, 1090, 2440), (530, 1840, 2480), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240)),
    *((660, 1720, 2410), (490, 1350, 1690), (640, 1190, 2390)),
)
NASAL_HZ = (260, 1200, 2300)
BANDWIDTHS_HZ = (80, 100, 140, 250, 350)
UPPER_HZ = (3500, 4500)  # formants 4 and 5
LOUDNESS = 0.25  # peak of a voice
SIGNAL_TO_NOISE_DB = (-6.0, 20.0)
PAUSE_S, PHRASE_S = (0.5, 1.8), (0.7, 2.2)

Floats = npt.NDArray[np.float64]


@dataclass
class Voice:
    """Gestures of a speaker, one row per `HOP`: formants in Hz, and loudness of voice and hiss, 0 to 1."""

    formants_hz: Floats
    voiced: Floats
    hiss: Floats


def recording(generator: np.random.Generator, seconds: float) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Samples, and for each whether somebody talks."""
    count = int(seconds * RATE_HZ)
    voice, talks = np.zeros(count), np.zeros(count, np.bool_)
    pitch_hz = generator.uniform(95, 235)
    at = int(generator.uniform(*PAUSE_S) * RATE_HZ)
    while at < count:
        said = LOUDNESS * phrase(generator, generator.uniform(*PHRASE_S), pitch_hz)[: count - at]
        voice[at : at + len(said)], talks[at : at + len(said)] = said, True
        at += len(said) + int(generator.uniform(*PAUSE_S) * RATE_HZ)
    level = np.std(voice[talks]) / 10 ** (generator.uniform(*SIGNAL_TO_NOISE_DB) / 20)
    mixed = voice + level * background(generator, count)
    return (mixed / max(1.0, np.abs(mixed).max()) * 32767).astype(np.int16), talks


def phrase(generator: np.random.Generator, seconds: float, pitch_hz: float) -> Floats:
    """Syllables one after another, the loudest sample 1."""
    rows = max(1, int(seconds * RATE_HZ / HOP))
    voice = _syllables(generator, rows)
    time_s = np.arange(rows) * HOP / RATE_HZ
    sway = 0.12 * np.sin(2 * np.pi * generator.uniform(0.5, 1.2) * time_s) - 0.15 * time_s / seconds
    pulses = _pulses(np.repeat(pitch_hz * (1 + sway), HOP), generator)
    breath = generator.normal(size=rows * HOP)
    size = 1.0 if pitch_hz < 165 else 1.15  # shorter vocal tracts have higher formants and pitch
    gains = np.stack([_vocal_tract(row * size) for row in voice.formants_hz])
    talked = _filtered(np.repeat(voice.voiced, HOP) * (pulses + 0.03 * breath), gains)
    hiss = _filtered(np.repeat(voice.hiss, HOP) * breath, _peak(generator.uniform(3800, 5500), 1500.0)[np.newaxis])
    said = talked / np.abs(talked).max(initial=1e-9) + 0.3 * hiss / np.abs(hiss).max(initial=1e-9)
    return said / np.abs(said).max()


def background(generator: np.random.Generator, count: int) -> Floats:
    """Something that is no speech, with a standard deviation of 1."""
    time_s = np.arange(count) / RATE_HZ
    kind = generator.integers(4)
    if kind == 0:  # noise between white and brown: a fan, rain, a street
        spectrum = np.fft.rfft(generator.normal(size=count))
        spectrum[1:] /= np.arange(1, len(spectrum)) ** generator.uniform(0, 1)
        sound = np.fft.irfft(spectrum, count)
    elif kind == 1:  # a chord that changes
        steps = np.repeat(generator.integers(0, 12, (count // 4000 + 1, 3)), 4000, axis=0)[:count]
        sound = np.sin(2 * np.pi * np.cumsum(220 * 2 ** (steps / 12) / RATE_HZ, axis=0)).sum(1)
    elif kind == 2:  # a hum with its harmonics
        sound = sum(np.sin(2 * np.pi * 50 * harmonic * time_s) / harmonic for harmonic in range(1, 12, 2))
    else:  # clicks, as of a keyboard
        sound = np.convolve(generator.random(count) < 5 / RATE_HZ, np.exp(-np.arange(400) / 60), "same")
        sound = sound * generator.normal(size=count) + 0.01 * generator.normal(size=count)
    return (sound - sound.mean()) / sound.std()


def chunks(samples: npt.NDArray[np.int16], talks: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int16], Floats]:
    """Rows of `CHUNK` samples, and for each 1 if somebody talks in at least half of it, else 0."""
    count = len(samples) // CHUNK
    share = talks[: count * CHUNK].reshape(count, CHUNK).mean(axis=1)
    return samples[: count * CHUNK].reshape(count, CHUNK), (share >= 0.5).astype(np.int64)


def _syllables(generator: np.random.Generator, rows: int) -> Voice:
    """A consonant and a vowel each, with gliding formants."""
    formants, voiced, hiss = np.zeros((rows, 3)), np.zeros(rows), np.zeros(rows)
    at, last = 0, np.array(VOWELS_HZ[0], float)
    while at < rows:
        vowel = np.array(VOWELS_HZ[generator.integers(len(VOWELS_HZ))], float)
        begin = at + int(generator.integers(5, 13))
        end = begin + int(generator.integers(12, 28))
        consonant = slice(at, min(begin, rows))
        formants[consonant] = (last + vowel) / 2
        kind = generator.integers(4)
        if kind == 0:  # fricative
            hiss[consonant] = 1.0
        elif kind == 1:  # nasal
            formants[consonant], voiced[consonant] = NASAL_HZ, 0.35
        elif kind == 2:  # stop: silence, then a burst
            hiss[max(at, begin - 2) : begin] = 1.0
        else:  # liquid
            voiced[consonant] = 0.6
        length = len(voiced[begin:end])
        glide = np.minimum(1.0, np.arange(length) / 8)[:, np.newaxis]
        formants[begin:end] = (last + vowel) / 2 * (1 - glide) + vowel * glide
        voiced[begin:end] = np.minimum(1.0, (1 + np.minimum(np.arange(length), np.arange(length)[::-1])) / 4)
        at, last = end, vowel
    return Voice(formants, voiced, hiss)


def _pulses(pitch_hz: Floats, generator: np.random.Generator) -> Floats:
    """The glottal flow's slope: it opens for 60 % of a period, closes in 15 %."""
    phase = np.cumsum(pitch_hz * (1 + 0.01 * generator.normal(size=len(pitch_hz))) / RATE_HZ) % 1
    opening, closing = 0.5 * (1 - np.cos(np.pi * phase / 0.6)), np.cos(np.pi / 2 * (phase - 0.6) / 0.15)
    return 8 * np.diff(np.where(phase < 0.6, opening, np.where(phase < 0.75, closing, 0.0)), prepend=0.0)


def _vocal_tract(formants_hz: Floats) -> Floats:
    """Gain at each frequency of a frame's spectrum."""
    peaks = zip([*formants_hz, *UPPER_HZ], BANDWIDTHS_HZ, strict=True)
    return np.prod([_peak(centre_hz, width_hz) for centre_hz, width_hz in peaks], axis=0)


def _peak(centre_hz: float, width_hz: float) -> Floats:
    """Gain of a resonance at each frequency of a frame's spectrum; 1 at 0 Hz."""
    pole = -np.pi * width_hz + 2j * np.pi * centre_hz
    s = 2j * np.pi * np.fft.rfftfreq(FRAME, 1 / RATE_HZ)
    return np.abs(pole) ** 2 / np.abs((s - pole) * (s - np.conj(pole)))


def _filtered(sound: Floats, gains: Floats) -> Floats:
    """The sound through a filter that changes every `HOP` samples (a single row: a constant one), by overlap-add."""
    padded = np.pad(sound, FRAME)
    window, out = np.hanning(FRAME + 1)[:-1], np.zeros(len(padded))
    for index, at in enumerate(range(0, len(padded) - FRAME, HOP)):
        row = gains[min(max(0, index - FRAME // (2 * HOP)), len(gains) - 1)]
        out[at : at + FRAME] += window * np.fft.irfft(np.fft.rfft(window * padded[at : at + FRAME]) * row, FRAME)
    return out[FRAME:-FRAME]
