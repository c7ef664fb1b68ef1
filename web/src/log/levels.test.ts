import { describe, expect, it } from 'vitest'
import { errorStarts, levelOf, parts } from './levels'

describe('levelOf', () => {
  it.each([
    ['2026-01-02T03:04:05.678Z ERROR paceline.worker: lost', 'error'], ['26/01/02 03:04:05 WARN Utils: slow', 'warning'], ['ERROR:root:no file', 'error'],
    ['[2026-01-02T03:04:05.678+0000] {load.py:12} ERROR - no file', 'error'], ['\x1b[33mWARN\x1b[0m slow', 'warning'], ['{"at": "x", "level": "ERROR"}', 'error'],
    ['pkg.LoadError: no file', 'error'], ['/srv/load.py:3: DeprecationWarning: old', 'warning'],
    ['0 ERROR lines', ''], ['2026-01-02T03:04:05.678Z INFO Retrying after ERROR', 'info'], ['an Error: it is in a sentence', ''], ['plain', ''],
  ] as const)('of %s', (line, level) => expect(levelOf(line)).toBe(level))
})

describe('parts', () => {
  it('takes the time and the level off', () => expect(parts('2026-01-02T03:04:05.678Z INFO ready')).toEqual({ at: '2026-01-02T03:04:05.678Z', name: 'INFO', level: 'info', text: 'ready', states: 0 }))
  it('shows the last state of a bar', () => expect(parts('\r 1%\r 50%\r100%\r')).toMatchObject({ text: '100%', states: 2 }))
})

describe('errorStarts', () => {
  it('is the traceback, not its last line, and a lone error', () => {
    const lines = [{ line: 3, text: 'ERROR lone' }, { line: 10, text: 'Traceback (most recent call last):' }, { line: 15, text: 'ValueError: x' }, { line: 16, text: '2026-01-02T03:04:05Z ERROR failed: x' }, { line: 90, text: 'ERROR again' }]
    expect(errorStarts(lines)).toEqual([3, 10, 90])
  })
  it('is the message before the traceback', () => expect(errorStarts([{ line: 3, text: 'ERROR load: no list' }, { line: 4, text: 'Traceback (most recent call last):' }, { line: 9, text: "KeyError: 'x'" }])).toEqual([3]))
})
