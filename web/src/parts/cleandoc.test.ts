import { expect, it } from 'vitest'
import { cleandoc } from './cleandoc'

it('removes the indentation of a docstring', () => {
  expect(cleandoc('\n    # Title\n\n    - one\n      - two\n    ')).toBe('# Title\n\n- one\n  - two')
  expect(cleandoc('First line\n    and a second')).toBe('First line\nand a second')
  expect(cleandoc('')).toBe('')
})
