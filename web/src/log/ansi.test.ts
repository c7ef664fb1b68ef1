import { describe, expect, it } from 'vitest'
import { marked, spans } from './ansi'

describe('spans', () => {
  it('gives colors and styles their classes', () => expect(spans('\x1b[1;31mbad\x1b[0m good')).toEqual([{ text: 'bad', style: 'a-b a-31' }, { text: ' good', style: '' }]))
  it('removes other sequences', () => expect(spans('a\x1b[2Kb\x1b]0;title\x07c\x1b[10;5Hd\re').map((span) => span.text).join('')).toBe('abcde'))
  it('keeps text that looks like markup', () => expect(spans('<script>')).toEqual([{ text: '<script>', style: '' }]))
  it('takes the first 16 of 256 colors, and skips exact ones', () => {
    expect(spans('\x1b[38;5;9mx')[0]!.style).toBe('a-91')
    expect(spans('\x1b[38;2;1;2;3;1mx')[0]!.style).toBe('a-b')
  })
  it('survives a sequence without an end', () => expect(spans('a\x1b[')).toEqual([{ text: 'a', style: '' }, { text: '', style: '' }].filter((one) => one.text)))
})

describe('marked', () => {
  it('finds text across colors and cases', () => {
    expect(marked(spans('ne\x1b[31mEDle\x1b[0m!'), 'NEED').filter((part) => part.hit).map((part) => part.text)).toEqual(['ne', 'ED'])
  })
  it('keeps all text', () => expect(marked(spans('aXbXc'), 'x').map((part) => part.text).join('')).toBe('aXbXc'))
})
