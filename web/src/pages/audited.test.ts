import { describe, expect, it } from 'vitest'
import { subject } from './audited'

describe('the subject of a request', () => {
  it('is named in its path, or in its body', () => {
    expect(subject('{"pool_name": "gpu", "body": {"slots": 2}}')).toBe('gpu')
    expect(subject('{"name": "grace"}')).toBe('grace')
    expect(subject('{"body": {"key": "smtp_host", "value": "***"}}')).toBe('smtp_host')
    expect(subject('{"body": {"connection_id": "db", "name": ""}}')).toBe('db')
  })
  it('is empty where nothing is named', () => {
    for (const extra of [null, '', '{', 'null', '7', '[]', '{"body": "12345 characters"}', '{"body": {"name": 7}}', '{"body": null}']) expect(subject(extra)).toBe('')
  })
})
